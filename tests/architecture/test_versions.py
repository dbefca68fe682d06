"""Each number has one owner; whoever repeats it is compared with the owner here."""

import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest

from helpers import ROOT, at_least


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


CARGO = table("Cargo.toml")
PROJECT = table("pyproject.toml")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHONS = at_least(
    4, re.findall(r":: Python :: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.MULTILINE)
)


def test_the_package_bears_the_workspaces_version() -> None:
    assert version("hydraulis") == CARGO["workspace"]["package"]["version"]
    assert f"## {version('hydraulis')}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_readme_names_the_least_rust() -> None:
    rust = CARGO["workspace"]["package"]["rust-version"]
    assert re.findall(r"Rust (?:>= ?)?(\d+\.\d+)", README) != []
    assert set(re.findall(r"Rust (?:>= ?)?(\d+\.\d+)", README)) == {rust}


def test_the_least_python_is_the_same_everywhere() -> None:
    least = PYTHONS[0]
    assert PROJECT["project"]["requires-python"] == f">={least}"
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{least.replace('.', '')}"
    assert PROJECT["tool"]["mypy"]["python_version"] == least
    assert f"abi3-py{least.replace('.', '')}" in CARGO["workspace"]["dependencies"]["pyo3"]["features"]


def test_the_oldest_supported_torch_is_tested() -> None:
    (least,) = (
        one for one in PROJECT["project"]["optional-dependencies"]["train"] if one.startswith("torch>")
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (versions,) = re.findall(r"^VERSIONS \?= (.+)$", makefile, re.MULTILINE)
    assert least == "torch>=" + versions.split()[0].removesuffix(".0")


@pytest.mark.parametrize("python", [PYTHONS[0], PYTHONS[-1]])
def test_the_readme_names_the_pythons(python: str) -> None:
    assert python in README


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(one for extra in extras.values() for one in extra)]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in at_least(10, wanted)}
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = at_least(10, re.findall(r"^([a-z0-9-]+)==", constraints, re.MULTILINE))
    assert sorted(pinned) == sorted(names)


@pytest.mark.parametrize("path", ["Makefile", "tools/set_up.sh"])
def test_the_set_up_repeats_no_number(path: str) -> None:
    """It reads the least versions from their owners."""
    text = (ROOT / path).read_text(encoding="utf-8")
    rust = CARGO["workspace"]["package"]["rust-version"]
    assert [number for number in (rust, PYTHONS[0], PYTHONS[-1]) if number in text] == []
