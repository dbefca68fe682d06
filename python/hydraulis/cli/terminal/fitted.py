"""Text fitted to a terminal's width: tables with narrower gaps, and lines that end between words."""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

_INDENT = 4
# A line may end after a space, but not before a unit or a value of TOML, and inside a list of strategies.
_BREAKS = re.compile(r"(?<= )(?! |%|ms\b|=|\[)|(?<=;)(?! )")


def terminal_width() -> int | None:
    """Return the columns of the terminal that standard output is; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(text: str, width: int | None, indent: int = _INDENT) -> str:
    """Fit the lines of a text into a width; a word that is wider keeps a line of its own.

    Lines of equal length are a table: its gaps become narrower before its lines are broken.

    Args:
        text: Lines of text.
        width: Columns of the terminal; None to keep every line.
        indent: Columns by which the rest of a broken line is indented more than its beginning.
    """
    if width is None:
        return text
    lines = text.split("\n")
    narrow = [line for _, block in groupby(lines, key=len) for line in _squeezed(list(block), width)]
    return "\n".join(part for line in narrow for part in _broken(line, width, indent))


def _squeezed(lines: Sequence[str], width: int) -> Sequence[str]:
    """Narrow the gaps of a table, the widest ones first; every gap keeps one column."""
    excess = len(lines[0]) - width
    if excess <= 0 or len(lines) < 2:
        return lines
    blank = [all(line[column] == " " for line in lines) for column in range(len(lines[0]))]
    gaps = [
        list(range(found.start(), found.end()))
        for found in re.finditer("1+", "".join("1" if one else "0" for one in blank))
    ]
    dropped: set[int] = set()
    while len(dropped) < excess and (widest := max(gaps, key=len, default=[])) and len(widest) > 1:
        dropped.add(widest.pop())
    return ["".join(char for column, char in enumerate(line) if column not in dropped) for line in lines]


def _broken(line: str, width: int, indent: int) -> Iterator[str]:
    margin = " " * (len(line) - len(line.lstrip()) + indent)
    part = ""
    for piece in _BREAKS.split(line):
        if part.strip() and len(part) + len(piece.rstrip()) > width:
            yield part.rstrip()
            part = margin
        part += piece
    yield part
