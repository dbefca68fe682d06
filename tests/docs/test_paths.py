"""Every path and link in the pages leads to a file of the repository."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import ROOT, at_least

PAGES = at_least(15, [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))])
# A page may name a file of the package or of the core below these folders.
BASES = (ROOT, ROOT / "python/hydraulis", ROOT / "crates/hydraulis-core/src")
TOP = ("benches", "crates", "docs", "examples", "python", "tests", "tools")
URL = re.compile(r"https?://[^\s)>`]+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Blocks of Python, JSON and TOML hold a reader's own files.
BLOCK = re.compile(r"^```(?!sh\n)\w+\n.*?^```$", re.MULTILINE | re.DOTALL)
BELOW_TOP = re.compile(rf"(?<![\w/.<-])(?:{'|'.join(TOP)})/[\w./-]*\w/?")
SOURCE = re.compile(r"(?<![\w/.<-])[\w/-]+\.(?:py|pyi|rs)\b")
FOLDER = re.compile(r"`([a-z_]+(?:/[a-z_]+)*/)`")
IN_SOURCE = re.compile(r"\b(?:docs|benches/record)/[\w./-]+\.md\b")


def prose(page: Path) -> str:
    """Return the text of a page without addresses, links and the reader's own files."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return URL.sub("", re.sub(r"\[[^\]]*\]\([^)\s]+\)", "", text))


def paths(page: Path) -> Iterator[str]:
    text = prose(page)
    for pattern in (BELOW_TOP, SOURCE, FOLDER):
        yield from pattern.findall(text)


def exists(path: str) -> bool:
    """Whether a file or folder of this name is there; a source file without a folder may be anywhere."""
    if any((base / path).exists() for base in BASES):
        return True
    return "/" not in path and any(any((ROOT / top).rglob(path)) for top in ("python", "crates", "tests"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_a_page_exists(page: Path) -> None:
    assert sorted({path for path in paths(page) if not exists(path)}) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if URL.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_pages_name_many_paths_and_links() -> None:
    at_least(80, {(page, path) for page in PAGES for path in paths(page)})
    at_least(60, [link for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))])


def test_every_page_that_the_sources_name_exists() -> None:
    sources = [*(ROOT / "python").rglob("*.py"), *(ROOT / "crates").rglob("*.rs"), ROOT / "Makefile"]
    named = {
        name
        for path in at_least(300, sources)
        for name in IN_SOURCE.findall(path.read_text(encoding="utf-8"))
    }
    assert [name for name in at_least(5, sorted(named)) if not (ROOT / name).is_file()] == []
