"""The lines of docs/drop-in.md without its frameworks: the first block runs, the others name what exists."""

import ast
import importlib.util
import inspect

import numpy as np
import pytest

from docs.page import blocks
from helpers import ROOT, at_least
from hydraulis.batching import BalancedBatchSampler

PYTHON = at_least(8, [block.body for block in blocks("docs/drop-in.md") if block.kind == "python"])


def test_the_first_lines_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = np.random.default_rng(0).lognormal(7, 1, 8 * 4096).astype(int).clip(1, 32_768)
    exec(compile(PYTHON[0], "docs/drop-in.md", "exec"), {"lengths": lengths, "rank": 3})
    assert "8 steps of 32,768 sequences" in capsys.readouterr().out


def defined(module: str) -> set[str]:
    """Return the names of a module without importing it: its framework may be absent."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:  # noqa: PTH123
        tree = ast.parse(file.read())
    named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    folder = (ROOT / "python").joinpath(*module.split("."))
    return named | imported | {path.stem for path in folder.glob("*.py")}


@pytest.mark.parametrize("body", PYTHON)
def test_every_name_of_the_package_on_the_page_exists(body: str) -> None:
    tree = ast.parse(body)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        assert node.module is not None
        if not node.module.startswith("hydraulis"):
            continue  # `tests/peers/test_page.py` runs the lines with the frameworks.
        assert {alias.name for alias in node.names} <= defined(node.module)
    options = set(inspect.signature(BalancedBatchSampler).parameters)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "BalancedBatchSampler":
            assert {keyword.arg for keyword in call.keywords} <= options
