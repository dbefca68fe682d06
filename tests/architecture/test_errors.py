import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from helpers import ROOT, at_least
from hydraulis import errors

CORE = re.compile(r'=> "([a-z_]+)"')
BINDING = re.compile(r'invalid\(py, &?message, "([a-z_]+)"\)')
PACKAGE = re.compile(r'\bcode="([a-z_]+)"')
LITERAL = re.compile(r"'[a-z_]+'")
HEADING = re.compile(r"^## `([a-z_]+)`$", re.MULTILINE)


def codes(pattern: re.Pattern[str], files: list[Path]) -> set[str]:
    return {code for file in files for code in pattern.findall(file.read_text(encoding="utf-8"))}


def test_every_code_has_one_heading_and_every_heading_a_code() -> None:
    core = codes(CORE, [ROOT / "crates/hydraulis-core/src/error/code.rs"])
    binding = codes(BINDING, at_least(5, (ROOT / "crates/hydraulis-py/src").rglob("*.rs")))
    package = codes(PACKAGE, at_least(20, (ROOT / "python/hydraulis").rglob("*.py")))
    at_least(20, core)
    at_least(1, binding)
    at_least(20, package)
    headings = at_least(45, HEADING.findall((ROOT / "docs/errors.md").read_text(encoding="utf-8")))
    assert [code for code, times in Counter(headings).items() if times > 1] == []
    assert headings == sorted(headings)
    known = core | binding | package
    assert sorted(known - set(headings)) == [], "codes without a heading in docs/errors.md"
    assert sorted(set(headings) - known) == [], "headings in docs/errors.md without a code"


def calls(files: list[Path]) -> Iterator[tuple[str, str | None]]:
    """Give the name of each thing that is called, without what it is of, and the code that it is given."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                code = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "code"]
                yield ast.unparse(node.func).rpartition(".")[2], code[0] if code else None


def test_every_exception_that_is_raised_has_a_literal_code() -> None:
    """A code put together at run time would escape the scan above."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    exceptions = {kind.__name__ for kind in kinds if issubclass(kind, errors.HydraulisError)}
    passed_on = {"code", "error.code"}
    files = at_least(20, (ROOT / "python/hydraulis").rglob("*.py"))
    found = at_least(190, (code for name, code in calls(files) if name in exceptions))
    assert len(exceptions) == 3
    assert {code for code in found if code is None or not LITERAL.fullmatch(code)} <= passed_on
