"""The glossary of docs/architecture.md has one row for each word, and file names follow it."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from helpers import ROOT, at_least

FOLDERS = ("python", "crates", "tests", "benches", "tools", "examples")


class Row(NamedTuple):
    words: list[str]
    meaning: str
    replaced: list[str]


def glossary() -> list[Row]:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.split("\n## Words\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    assert {len(row) for row in cells} == {3}
    return [Row(listed(word), meaning.strip(), listed(replaced)) for word, meaning, replaced in cells]


def listed(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",") if word.strip()]


ROWS = at_least(50, glossary())


def files() -> list[Path]:
    """Return the files of the repository, build results left out."""
    git = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=False)
    listed_files = [Path(name) for name in git.stdout.splitlines()]
    if git.returncode == 0 and listed_files:
        return at_least(400, listed_files)
    found = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return at_least(400, [path for path in found if "__pycache__" not in path.parts])


def spoken(path: Path) -> str:
    """Return the words of a path: ` tests planner test plan py `; `held_out` is a term of the field."""
    text = re.sub(r"held_out|[^a-z]+", " ", str(path).lower())
    return f" {' '.join(text.split())} "


def test_every_word_has_one_row_and_every_row_a_meaning() -> None:
    words = at_least(60, [word for row in ROWS for word in row.words])
    assert sorted({word for word in words if words.count(word) > 1}) == []
    assert [row.words for row in ROWS if not row.words or len(row.meaning) < 10] == []


def test_no_word_is_replaced_by_another_and_used() -> None:
    replaced = at_least(25, [word for row in ROWS for word in row.replaced])
    assert sorted({word for word in replaced if replaced.count(word) > 1}) == []
    assert sorted(set(replaced) & {word for row in ROWS for word in row.words}) == []


def test_no_file_name_uses_a_replaced_word() -> None:
    replaced = [word for row in ROWS for word in row.replaced]
    found = {
        str(path)
        for path in files()
        for word in replaced
        if any(f" {form} " in spoken(path) for form in (word, f"{word}s"))
    }
    assert sorted(found) == []
