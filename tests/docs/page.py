"""The blocks of a page of the documentation, and the commands in them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from helpers import ROOT, at_least

_BLOCK = re.compile(r"(?:^`([\w./-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        file: Name that the page gives it; empty if it gives none.
        kind: Language of the code.
        body: Text of the block.
    """

    file: str
    kind: str
    body: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, by its path below the root."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(*found) for found in at_least(1, _BLOCK.findall(text))]


def commands(body: str) -> list[list[str]]:
    """Return the commands of a block of shell, as words without the environment and without comments."""
    found = []
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        if words:
            words[0] = words[0].removeprefix(".venv/bin/")
            found.append(words)
    return found


def pages() -> list[str]:
    """Return every page that tells people what to type."""
    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    known = {"log.md"}
    paths = [path for path in written if path.name not in known]
    return [str(path.relative_to(ROOT)) for path in sorted(at_least(12, paths)) if has_shell(path)]


def has_shell(path: Path) -> bool:
    """Whether a page has a command in it."""
    return "```sh\n" in path.read_text(encoding="utf-8")
