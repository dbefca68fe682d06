"""What the README shows is there; its commands are run by docs/test_commands.py."""

import re

from helpers import ROOT, at_least

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = at_least(1, re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT))
    assert [name for name in pictures if not (ROOT / name).is_file()] == []


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    links = at_least(15, re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", TEXT))
    local = at_least(12, [link for link in links if not link.startswith("http")])
    assert [link for link in local if not (ROOT / link).exists()] == []
    pages = at_least(10, (ROOT / "docs").glob("*.md"))
    assert sorted(path.name for path in pages if f"docs/{path.name}" not in local) == []
