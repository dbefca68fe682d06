"""The broken records of a file, told together: who has to mend one may mend them all."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.record_file import RecordFile
from hydraulis.errors import InvalidInputError
from hydraulis.text.numbers import format_count

if TYPE_CHECKING:
    from hydraulis.data.index.job import Piece

# So many are listed; the others are counted.
MAX_LISTED = 10
# For so long others are looked for: nobody should wait for an hour to hear of the first.
SCAN_S = 10.0
# What a refusal ends with, whatever is wrong.
_OR_SKIP = '; data.broken = "skip" (--broken skip) leaves such records out'
# What that of one record ends with: what to do.
_REMEDY = re.compile(r"(?P<cause>.*)[;:] (?P<remedy>[^;:]*)", re.DOTALL)


@dataclass(slots=True)
class BrokenRecords:
    """Those of one file, as far as it was looked at.

    Attributes:
        file: its number.
        listed: where the first of them stand, and what is wrong there.
        number: of all.
        looked_to: where the last record stands that was looked at.
        is_whole: whether none behind that was left out.
    """

    file: int
    listed: list[tuple[int, BrokenRecord]] = field(default_factory=list)
    number: int = 0
    looked_to: int = 0
    is_whole: bool = True

    @classmethod
    def behind(cls, file: int, where: int, first: BrokenRecord, others: Iterable[tuple[int, object]]) -> Self:
        """Look for others behind the first one of a piece.

        Args:
            file: the number of the file.
            where: the first one stands.
            first: of the piece.
            others: where the records behind it stand, and what they are.
        """
        broken = cls(file)
        broken.add(where, first)
        until_s = time.monotonic() + SCAN_S
        for place, record in others:
            broken.looked_to = place
            if isinstance(record, BrokenRecord):
                broken.add(place, record)
            if time.monotonic() > until_s:
                broken.is_whole = False
                break
        return broken

    def add(self, where: int, record: BrokenRecord) -> None:
        """Count one that stands behind all that were counted."""
        self._add([(where, record)], 1)
        self.looked_to = where

    def places(self, file: RecordFile) -> list[str]:
        """Say of each that is listed where it stands and what is wrong, with the file's name."""
        return [f"{file.place(where)}{broken.why}" for where, broken in self.listed]

    def look_on(self, later: Iterable[tuple["Piece", Iterable[object]]]) -> None:
        """Look for others in the rest of the file.

        Args:
            later: the pieces that follow, each with what becomes of it.
        """
        until_s = time.monotonic() + SCAN_S
        for piece, parts in later:
            if piece.file != self.file or not self.is_whole:
                return
            for part in parts:
                if isinstance(part, BrokenRecords):
                    self._add(part.listed, part.number)
                    self.looked_to, self.is_whole = part.looked_to, part.is_whole
                if time.monotonic() > until_s:
                    self.is_whole = False
                    return
            if self.is_whole:
                self.looked_to = piece.stop - 1

    def error(self, path: Path, file: RecordFile) -> InvalidInputError:
        """Make the refusal, with the code of the first."""
        first_where, first = self.listed[0]
        code = first.code
        if self.number == 1 and self.is_whole:
            return InvalidInputError(f"{file.place(first_where)}{first.why}{_OR_SKIP}", code=code)
        name = f"file '{path}'"
        texts = [f"{_within(name, file.place(where))}{broken.why}" for where, broken in self.listed]
        looked_to = _within(name, file.place(self.looked_to))
        up_to = "" if self.is_whole else f" up to {looked_to}, where {SCAN_S:.0f} s of looking ended"
        if self.number == 1:
            message = f"{name}, {texts[0]} (no other one is refused{up_to})"
        else:
            more = f"; and {self.number - len(texts):,} more" if self.number > len(texts) else ""
            message = f"{name} has {self.number:,} records that are refused{up_to}: {_listed(texts, more)}"
        return InvalidInputError(message + _OR_SKIP, code=code)

    def _add(self, listed: Sequence[tuple[int, BrokenRecord]], number: int) -> None:
        self.listed += listed[: MAX_LISTED - len(self.listed)]
        self.number += number


def describe_left_out(number: int, first: Sequence[str]) -> str:
    """Say that broken records were left out.

    Args:
        number: of them, at least 1.
        first: where the first of them stand, and what is wrong there.
    """
    more = f"; and {number - len(first):,} more" if number > len(first) else ""
    return f"{format_count(number, 'broken record')} left out: {_listed(first, more)}"


def _within(name: str, place: str) -> str:
    """Give a place without the file, which is named once."""
    return place.removeprefix(f"{name}, ")


def _listed(texts: Sequence[str], more: str) -> str:
    """Join what is told of each record; what all of them end with is told once, and so is each remedy."""
    ending = texts[0]
    while not all(text.endswith(ending) for text in texts):
        ending = ending[1:]
    cuts = [cut for mark in ("; ", ": ") if (cut := ending.find(mark)) >= 0]
    if cuts:
        ending = ending[min(cuts) :]
        return "; ".join(text.removesuffix(ending) for text in texts) + more + ending
    parts = [found.groupdict() for text in texts if (found := _REMEDY.fullmatch(text))]
    remedies = dict.fromkeys(part["remedy"] for part in parts)
    return "; ".join(part["cause"] for part in parts) + more + "; " + "; ".join(remedies)
