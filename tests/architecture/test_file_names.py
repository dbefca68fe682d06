"""The name of a file has one owner: whoever writes or reads it asks there."""

import ast
from pathlib import Path

import pytest

from helpers import ROOT, at_least
from hydraulis.runtime.records import run_directory

PACKAGE = ROOT / "python/hydraulis"
OWNER = PACKAGE / "runtime/records/run_directory.py"
# Those of a model's folder and of a checkpoint are other files than a run's.
OWNERS = {
    run_directory.RUN_CONFIG: {
        OWNER,
        PACKAGE / "config/hugging_face/read.py",
        PACKAGE / "runtime/checkpoint/saver.py",
    }
}
NAMES = at_least(
    12,
    [
        value
        for name, value in vars(run_directory).items()
        if isinstance(value, str) and name.isupper() and "." in value
    ],
)


def spelled(path: Path) -> set[str]:
    """Give the strings that a module spells out whole."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str
    }


@pytest.fixture(scope="module")
def modules() -> dict[Path, set[str]]:
    return {path: spelled(path) for path in at_least(100, PACKAGE.rglob("*.py"))}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_a_runs_folder_is_named_once(modules: dict[Path, set[str]], name: str) -> None:
    assert {path for path, strings in modules.items() if name in strings} == OWNERS.get(name, {OWNER})
