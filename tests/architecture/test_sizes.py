"""The size promise of CONTRIBUTING: what is long is split before it is too long."""

import ast
import re
import warnings
from pathlib import Path

import pytest

from helpers import ROOT, at_least

FILE_WARN, FILE_FAIL = 400, 600
FUNCTION_FAIL = 100
INLINE_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod tests \{.*", re.MULTILINE | re.DOTALL)
# rustfmt puts the closing brace under the first letter of the signature's line.
RUST_FUNCTION = re.compile(
    r"^( *)(?:pub(?:\([^)]*\))? )?(?:const )?fn (\w+)[^\n]*(?<!;)\n(?:.*?\n)??\1\}$", re.M | re.S
)
# However it is declared, and wherever it ends; a trait's method without a body has no lines of its own.
ANY_RUST_FUNCTION = re.compile(r"^(?! *//)(?!.*;$).*?\bfn \w", re.M)


def python_files() -> list[Path]:
    # A stub declares all of one native module: its length is that of the interface.
    return at_least(20, (ROOT / "python").rglob("*.py"))


def rust_files() -> list[Path]:
    return at_least(40, (ROOT / "crates").glob("*/src/**/*.rs"))


def source_lines(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    return len((INLINE_TESTS.sub("", text) if path.suffix == ".rs" else text).splitlines())


@pytest.mark.filterwarnings("default:long file:UserWarning")
def test_files_are_short() -> None:
    sizes = {str(path.relative_to(ROOT)): source_lines(path) for path in python_files() + rust_files()}
    for name, lines in sizes.items():
        if FILE_WARN < lines <= FILE_FAIL:
            warnings.warn(f"long file: {name} has {lines} lines, more than {FILE_WARN}", stacklevel=1)
    assert {name: lines for name, lines in sizes.items() if lines > FILE_FAIL} == {}


def test_python_functions_are_short() -> None:
    sizes: dict[str, int] = {}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                sizes[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = (
                    node.end_lineno - node.lineno + 1
                )
    at_least(100, sizes)
    assert {name: lines for name, lines in sizes.items() if lines > FUNCTION_FAIL} == {}


def test_rust_functions_are_short() -> None:
    """Clippy looks too, but a lint can be allowed away where it fires."""
    sizes: dict[str, int] = {}
    written = 0
    for path in rust_files():
        text = path.read_text(encoding="utf-8")
        written += len(ANY_RUST_FUNCTION.findall(text))
        for function in RUST_FUNCTION.finditer(text):
            place = text.count("\n", 0, function.start()) + 1
            sizes[f"{path.relative_to(ROOT)}:{place} {function[2]}"] = function[0].count("\n") + 1
    at_least(200, sizes)
    assert len(sizes) == written, "some function was not measured"
    assert {name: lines for name, lines in sizes.items() if lines > FUNCTION_FAIL} == {}


@pytest.mark.parametrize(("page", "most"), [("log.md", 300), ("architecture.md", 150)])
def test_pages_are_short(page: str, most: int) -> None:
    """A table may grow with the code that it lists."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("|")]) <= most
