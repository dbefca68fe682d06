"""Docstrings of the Rust crates name only error codes that exist."""

import re
from pathlib import Path

import pytest

from hydraulis import _core

CRATES = Path(__file__).resolve().parents[2] / "crates"
CODES = {code for code, _, _ in _core.error_codes()}
WORD = re.compile(r"`([a-z]+(?:_[a-z]+)*)`")
REFUSED = re.compile(r"[Rr]efused with `([a-z_]+)`(?:[^.;]*? with `([a-z_]+)`)?")
FILES = sorted(CRATES.glob("hydraulis-*/src/**/*.rs"))


def _docstrings(text: str) -> list[str]:
    """Return the documentation comments of a file, without their marks."""
    comments = re.findall(r"(?:^[ \t]*///.*\n)+", text, flags=re.MULTILINE)
    return [re.sub(r"^[ \t]*/// ?", "", comment, flags=re.MULTILINE) for comment in comments]


def _named(docstring: str) -> set[str]:
    """Return the words that stand for codes: those of a section `Raises`, and those after "refused with"."""
    words = set()
    if raises := re.search(r"^Raises:\n((?:[ \t]+.*\n)+)", docstring, flags=re.MULTILINE):
        words |= set(WORD.findall(raises[1]))
    for match in REFUSED.finditer(" ".join(docstring.split())):
        words |= {word for word in match.groups() if word}
    return words


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CRATES)))
def test_docstrings_name_codes_that_exist(path: Path) -> None:
    named = set().union(*map(_named, _docstrings(path.read_text(encoding="utf-8"))))
    assert named <= CODES
