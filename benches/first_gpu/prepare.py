"""Makes a checkout run on a machine with torch: no virtual environment, no network unless something lacks."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Modules that the parts import, and their packages.
_NEEDED = {
    "numpy": "numpy",
    "safetensors": "safetensors",
    "rich": "rich",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
    "transformers": "transformers",
}
_BUILD_S, _INSTALL_S, _LOOK_S = 420.0, 180.0, 120.0
_LOOK = """
import torch
if not torch.cuda.is_available():
    raise SystemExit(f"torch {torch.__version__} finds no CUDA device")
print(torch.cuda.get_device_name(0))
"""


class UnpreparedError(Exception):
    """The machine lacks something that every part needs; the message names it and its remedy."""


def require_device() -> str:
    """Return the name of the first CUDA device.

    Raises:
        UnpreparedError: This Python has no torch, or torch finds no device.
    """
    if importlib.util.find_spec("torch") is None:
        message = f"{sys.executable} has no torch: name a Python that has it, make PYTHON=python3 ..."
        raise UnpreparedError(message)
    # In another process: CUDA must not start in this one, and may crash.
    ended = _run([sys.executable, "-c", _LOOK], _LOOK_S)
    if ended.returncode != 0:
        said = (ended.stderr.strip() or f"torch ended with status {ended.returncode}").splitlines()[-1]
        message = f"there is no CUDA device to use: {said} ({sys.executable})"
        raise UnpreparedError(message)
    return ended.stdout.strip().splitlines()[-1]


def prepare(root: Path, site: Path) -> None:
    """Provide missing packages and the extension, and let this and later processes find them.

    Args:
        root: Folder of the checkout.
        site: Folder for packages that this Python lacks, and for the package's metadata.

    Raises:
        UnpreparedError: A package cannot be installed, or the extension cannot be built.
    """
    site.mkdir(parents=True, exist_ok=True)
    _describe_package(root, site)
    paths = [str(root / "python"), str(root), str(site)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.append(str(site))
    importlib.invalidate_caches()
    _install([package for module, package in _NEEDED.items() if not _has(module)], site)
    why = _extension_error()
    if why:
        _build(root, why)
        why = _extension_error()
        if why:
            message = f"the extension hydraulis._core cannot be imported: {why}"
            raise UnpreparedError(message)


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _describe_package(root: Path, site: Path) -> None:
    """Write the metadata of an installed package, by which Hydraulis knows its version."""
    version = re.search(r'^version = "(.+)"', (root / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)
    folder = site / "hydraulis-0.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: hydraulis\nVersion: {version[1] if version else '0'}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")


def _install(packages: list[str], site: Path) -> None:
    if not packages:
        return
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site)]
    ended = _run([sys.executable, *words, *packages], _INSTALL_S)
    if ended.returncode != 0:
        message = (
            f"{sys.executable} lacks {', '.join(packages)}, and pip cannot install them: "
            f"{(ended.stderr.strip() or 'no time was left').splitlines()[-1]}"
        )
        raise UnpreparedError(message)
    importlib.invalidate_caches()


def _extension_error() -> str:
    """Return why the extension cannot be imported; empty if it can."""
    ended = _run([sys.executable, "-c", "import hydraulis._core"], _LOOK_S)
    return "" if ended.returncode == 0 else (ended.stderr.strip() or "no reason given").splitlines()[-1]


def _build(root: Path, why: str) -> None:
    if shutil.which("cargo") is None:
        message = (
            f"the extension hydraulis._core cannot be imported ({why}), and there is no cargo to build it: "
            "install Rust from https://rustup.rs, or copy the _core.abi3.so of a wheel (make wheel) into "
            "python/hydraulis"
        )
        raise UnpreparedError(message)
    words = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "hydraulis-py", "--lib"]
    # Otherwise it would need the library of this very Python.
    linking = {"PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    ended = _run(words, _BUILD_S, cwd=root, **linking)
    if ended.returncode != 0:
        message = f"cargo cannot build the extension: {(ended.stderr.strip() or 'no time was left')[-500:]}"
        raise UnpreparedError(message)
    shutil.copy(root / "target/release/lib_core.so", root / "python/hydraulis/_core.abi3.so")


def _run(
    words: list[str], limit_s: float, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no end within {limit_s:.0f} s")
