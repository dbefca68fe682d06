import re
from collections import Counter
from pathlib import Path

from helpers import ROOT, at_least

CORE = re.compile(r'=> "([a-z_]+)"')
BINDING = re.compile(r'invalid\(py, &?message, "([a-z_]+)"\)')
PACKAGE = re.compile(r'\bcode="([a-z_]+)"')
HEADING = re.compile(r"^## `([a-z_]+)`$", re.MULTILINE)


def codes(pattern: re.Pattern[str], files: list[Path]) -> set[str]:
    return {code for file in files for code in pattern.findall(file.read_text(encoding="utf-8"))}


def test_every_code_has_one_heading_and_every_heading_a_code() -> None:
    core = codes(CORE, [ROOT / "crates/hydraulis-core/src/error/code.rs"])
    binding = codes(BINDING, at_least(5, (ROOT / "crates/hydraulis-py/src").glob("*.rs")))
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


def test_every_exception_that_is_raised_has_a_literal_code() -> None:
    """A code put together at run time would escape the scan above."""
    raised = re.compile(r"\b(?:HydraulisError|InvalidInputError|InfeasibleError)\([^()]*\bcode=([^\s,)]+)")
    passed_on = {"code", "error.code"}
    files = at_least(20, (ROOT / "python/hydraulis").rglob("*.py"))
    found = at_least(
        20, (code for file in files for code in raised.findall(file.read_text(encoding="utf-8")))
    )
    assert [code for code in found if not code.startswith('"') and code not in passed_on] == []
