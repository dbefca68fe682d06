"""A checkout is prepared without a network where nothing lacks, and each lack is named with its remedy."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import ROOT


class Machine:
    """A machine that runs no command, but answers for each."""

    def __init__(self, *, has_extension: bool = True, fails: str = "") -> None:
        self.commands: list[str] = []
        self.has_extension, self._fails = has_extension, fails

    def run(
        self, words: list[str], _limit_s: float, **_options: object
    ) -> "subprocess.CompletedProcess[str]":
        self.commands.append(" ".join(Path(words[0]).name if word is words[0] else word for word in words))
        is_import = "import hydraulis._core" in words
        succeeds = self.has_extension if is_import else not (self._fails and self._fails in words)
        if "build" in words and succeeds:
            self.has_extension = True
        return subprocess.CompletedProcess(words, 0 if succeeds else 1, "", "" if succeeds else "the reason")


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("benches.first_gpu.prepare")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "python" / "hydraulis").mkdir(parents=True)
    (tmp_path / "target" / "release").mkdir(parents=True)
    (tmp_path / "target" / "release" / "lib_core.so").write_text("built")
    (tmp_path / "Cargo.toml").write_text('[workspace.package]\nversion = "7.8.9"\n')
    return tmp_path


def use(machine: Machine, prepare: Any, monkeypatch: pytest.MonkeyPatch, *, lacking: str = "") -> None:
    monkeypatch.setattr(prepare, "_run", machine.run)
    monkeypatch.setattr(prepare, "_has", lambda module: module != lacking)
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/cargo")


def test_where_nothing_lacks_nothing_is_installed_or_built(
    prepare: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    use(machine, prepare, monkeypatch)
    prepare.prepare(checkout, checkout / "site")
    assert not [words for words in machine.commands if "pip" in words or "cargo" in words]
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(checkout / "python"), str(checkout), str(checkout / "site")]
    assert "Version: 7.8.9" in (checkout / "site/hydraulis-0.dist-info/METADATA").read_text()


def test_the_extension_is_built_where_it_lacks(
    prepare: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(has_extension=False)
    use(machine, prepare, monkeypatch)
    prepare.prepare(checkout, checkout / "site")
    assert "cargo build --release --locked --quiet -p hydraulis-py --lib" in machine.commands
    assert (checkout / "python/hydraulis/_core.abi3.so").read_text() == "built"


@pytest.mark.parametrize(
    ("machine", "lacking", "cargo", "parts"),
    [
        (Machine(fails="pip"), "rich", "/usr/bin/cargo", ["rich", "the reason"]),
        (Machine(has_extension=False), "", None, ["hydraulis._core", "the reason", "rustup.rs"]),
        (Machine(has_extension=False, fails="build"), "", "/usr/bin/cargo", ["cargo", "the reason"]),
    ],
)
def test_a_lack_is_named_with_its_remedy(
    prepare: Any,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    lacking: str,
    cargo: str | None,
    parts: list[str],
) -> None:
    use(machine, prepare, monkeypatch, lacking=lacking)
    monkeypatch.setattr("shutil.which", lambda _name: cargo)
    with pytest.raises(prepare.UnpreparedError) as caught:
        prepare.prepare(checkout, checkout / "site")
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_python_without_torch_is_named(prepare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _module: None)
    with pytest.raises(prepare.UnpreparedError, match="has no torch") as caught:
        prepare.require_device()
    assert sys.executable in str(caught.value)
