"""What the README shows is there; its commands are run by docs/test_commands.py."""

import itertools
import re
import shutil
import subprocess

import pytest

from docs.page import blocks, commands, pages
from helpers import ROOT, at_least

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

# Before the name of what is written.
_WRITING = {"--output", "--figure", "--trace", "--png", "--log-dir", ">"}


def test_the_pictures_of_the_readme_exist() -> None:
    pictures = at_least(1, re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT))
    assert [name for name in pictures if not (ROOT / name).is_file()] == []


def test_every_page_is_linked_and_every_link_has_a_target() -> None:
    links = at_least(15, re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", TEXT))
    local = at_least(12, [link for link in links if not link.startswith("http")])
    assert [link for link in local if not (ROOT / link).exists()] == []
    pages = at_least(10, (ROOT / "docs").glob("*.md"))
    assert sorted(path.name for path in pages if f"docs/{path.name}" not in local) == []


def test_git_ignores_the_output_of_the_commands_of_the_pages() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    found = [block for page in pages() for block in blocks(page)]
    written = {block.file for block in found if block.file and "/" not in block.file}
    for words in (words for block in found if block.kind == "sh" for words in commands(block.body)):
        written |= {after for word, after in itertools.pairwise(words) if word in _WRITING}
    of_scripts = {"base/config.json", "stories.jsonl", "lengths-compared.png", "runs/demo/metrics.jsonl"}
    paths = sorted(at_least(8, written | of_scripts))
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert sorted(ignored.stdout.split()) == paths
