"""The size promise of CONTRIBUTING: a long file is split before it is too long, and a short one is merged."""

import ast
import re
import warnings
from pathlib import Path

import pytest

from helpers import ROOT, at_least

FILE_WARN, FILE_FAIL = 400, 600
FUNCTION_FAIL = 100
# A file below this limit belongs to another one: to its user, or to a file with the same idea.
FILE_LEAST = 25
# The root of a package or a module, and a program: their place is given.
ROOTS = {"__init__.py", "__main__.py", "mod.rs", "lib.rs", "main.rs"}
A_PROGRAM = "bin"
# Files below FILE_LEAST that stay, each with its reason.
SHORT = {
    "crates/hydraulis-py/src/comparison.rs": "the one door to the crate of the benchmarks",
    "python/hydraulis/batching/adapters/megatron_schedule.py": "one file for each framework",
    "python/hydraulis/batching/adapters/replacement.py": "the adapters of two frameworks share it",
    "python/hydraulis/batching/adapters/verl_partition.py": "one file for each framework",
    "python/hydraulis/cli/commands/bench.py": "one file for each command",
    "python/hydraulis/cli/ranks/fork_server.py": "the server of forked ranks imports it by its name",
    "python/hydraulis/config/samples.py": "one file for each section of a configuration",
    "python/hydraulis/extras.py": "a layer of its own: all rooms above import optional libraries by it",
    "python/hydraulis/preflight/finding.py": "the checks and their caller share it: a merge makes a cycle",
    "python/hydraulis/progress.py": "a layer of its own: all rooms above report their progress by it",
    "python/hydraulis/runtime/ranks/torchrun.py": "the launcher reads it, and its siblings import torch",
}
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


def code_lines(path: Path) -> int:
    """Count the lines without blank ones, comments and docstrings; unit tests in a file of Rust count."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".rs":
        return sum(bool(line.strip()) and not line.strip().startswith("//") for line in lines)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code = (line for number, line in enumerate(lines, 1) if number not in docstrings)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code)


def test_files_have_an_idea() -> None:
    """The list of exceptions is exact: a file that grew, moved or was merged leaves it."""
    files = [path for path in python_files() + rust_files() if path.name not in ROOTS]
    sizes = {str(path.relative_to(ROOT)): code_lines(path) for path in files if A_PROGRAM not in path.parts}
    at_least(300, sizes)
    short = {name: lines for name, lines in sizes.items() if lines < FILE_LEAST}
    unlisted = {name: lines for name, lines in short.items() if name not in SHORT}
    assert unlisted == {}, "merge each with the file that it belongs to"
    assert SHORT.keys() - short.keys() == set()


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
