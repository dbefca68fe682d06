"""Every code is defined once and raised somewhere, and docs/errors.md is generated from the codes."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from helpers import ROOT, at_least
from hydraulis import errors
from hydraulis._core import error_codes

MOST_CODES = 60
CORE = ROOT / "crates/hydraulis-core/src/error"
DEFINED = re.compile(r"^pub const ([A-Z_]+): ErrorCode = ErrorCode \{\n    name: \"([a-z_]+)\"", re.MULTILINE)
RAISED = re.compile(r"\bcodes::([A-Z_]+)\b")
# Codes in a docstring: (code `one`) and (codes `one`, `two`), also across lines.
DOCUMENTED = re.compile(r"\bcodes?\s+((?:`[a-z_]+`(?:,\s+|\s+and\s+|\s+or\s+)?)+)")
BENCH = re.compile(r'=> "([a-z_]+)"')


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_errors_page", ROOT / "tools/write_errors_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(pattern: re.Pattern[str], files: list[Path]) -> set[str]:
    return {code for file in files for code in pattern.findall(file.read_text(encoding="utf-8"))}


def python_codes() -> Iterator[tuple[str, str]]:
    """Give the place and the source text of each `code=` argument in the package."""
    for file in at_least(20, (ROOT / "python/hydraulis").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg == "code":
                        place = f"{file.relative_to(ROOT)}:{node.lineno}"
                        yield place, ast.unparse(keyword.value)


def test_the_page_is_generated_from_the_codes(tool: ModuleType) -> None:
    at_least(45, tool.all_codes())
    committed = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    assert committed == tool.page(), "docs/errors.md differs from the codes; run make errors-page"


def test_there_are_few_codes_in_order(tool: ModuleType) -> None:
    assert len(at_least(45, tool.all_codes())) <= MOST_CODES
    assert list(errors.CODES) == sorted(errors.CODES)
    for name, code in tool.all_codes().items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert code.meaning.endswith("."), name
        assert code.remedy.endswith("."), name


def test_every_code_of_the_core_is_exported_and_raised() -> None:
    defined = dict(DEFINED.findall((CORE / "codes.rs").read_text(encoding="utf-8")))
    at_least(15, defined)
    assert sorted(defined.values()) == [name for name, _, _ in error_codes()]
    assert {constant.lower() for constant in defined} == set(defined.values())
    assert found(RAISED, [CORE / "code.rs"]) - {"ALL"} == set(defined)


def test_every_code_of_the_package_is_defined_and_raised(tool: ModuleType) -> None:
    raised = at_least(190, python_codes())
    literals = {(place, text[1:-1]) for place, text in raised if text.startswith("'")}
    unknown = {(place, code) for place, code in literals if code not in tool.all_codes()}
    assert unknown == set()
    assert sorted(errors.CODES.keys() - {code for _, code in literals}) == [], "codes that are never raised"


def test_every_code_of_a_docstring_is_defined(tool: ModuleType) -> None:
    files = at_least(20, (ROOT / "python/hydraulis").rglob("*.py"))
    lists = at_least(190, [text for file in files for text in DOCUMENTED.findall(file.read_text("utf-8"))])
    codes = {code for text in lists for code in re.findall("`([a-z_]+)`", text)}
    assert sorted(codes - tool.all_codes().keys()) == []


def test_every_code_of_the_bench_is_defined(tool: ModuleType) -> None:
    codes = at_least(4, found(BENCH, [ROOT / "crates/hydraulis-bench/src/error.rs"]))
    assert sorted(codes - tool.all_codes().keys()) == []


def calls(files: list[Path]) -> Iterator[tuple[str, str | None]]:
    """Give the last name of each called function, and the source text of its code argument."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                code = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "code"]
                yield ast.unparse(node.func).rpartition(".")[2], code[0] if code else None


def test_every_exception_that_is_raised_has_a_literal_code() -> None:
    """The scan above cannot see a code that is computed at run time."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    exceptions = {kind.__name__ for kind in kinds if issubclass(kind, errors.HydraulisError)}
    passed_on = {"code", "error.code"}
    files = at_least(20, (ROOT / "python/hydraulis").rglob("*.py"))
    codes = at_least(190, (code for name, code in calls(files) if name in exceptions))
    assert len(exceptions) == 3
    assert {code for code in codes if code is None or not code.startswith("'")} <= passed_on
