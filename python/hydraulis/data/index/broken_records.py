"""The broken records of a file, reported together so that all of them can be corrected at once."""

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

# Number of records that a message lists; the others are counted.
MAX_LISTED = 10
# Time limit of the search for further broken records after the first.
SCAN_S = 10.0
_OR_SKIP = '; data.broken = "skip" (--broken skip) leaves such records out'


@dataclass(slots=True)
class BrokenRecords:
    """The broken records in the scanned part of one file.

    A position is a place in the file as `RecordFile` counts it.

    Attributes:
        file: Number of the file.
        listed: Positions and causes of the first broken records.
        number: Number of all broken records.
        scanned_to: Position of the last scanned record.
        is_complete: Whether the scan did not reach its time limit.
    """

    file: int
    listed: list[tuple[int, BrokenRecord]] = field(default_factory=list)
    number: int = 0
    scanned_to: int = 0
    is_complete: bool = True

    @classmethod
    def scan_piece(
        cls, file: int, where: int, first: BrokenRecord, others: Iterable[tuple[int, object]]
    ) -> Self:
        """Collect the broken records of a piece from the first one on.

        Args:
            file: Number of the file.
            where: Position of the first broken record.
            first: The first broken record.
            others: Positions and values of the records after it.
        """
        broken = cls(file)
        broken.add(where, first)
        until_s = time.monotonic() + SCAN_S
        for place, record in others:
            broken.scanned_to = place
            if isinstance(record, BrokenRecord):
                broken.add(place, record)
            if time.monotonic() > until_s:
                broken.is_complete = False
                break
        return broken

    def add(self, where: int, record: BrokenRecord) -> None:
        """Add a record at a position after all earlier ones."""
        self._add([(where, record)], 1)
        self.scanned_to = where

    def describe(self, file: RecordFile) -> list[str]:
        """Return the place and the cause of each listed record."""
        return [f"{file.place(where)}{broken.reason}" for where, broken in self.listed]

    def scan_rest(self, later: Iterable[tuple["Piece", Iterable[object]]]) -> None:
        """Scan the rest of the file.

        Args:
            later: The following pieces, each with its blocks and its broken records.
        """
        until_s = time.monotonic() + SCAN_S
        for piece, parts in later:
            if piece.file != self.file or not self.is_complete:
                return
            for part in parts:
                if isinstance(part, BrokenRecords):
                    self._add(part.listed, part.number)
                    self.scanned_to, self.is_complete = part.scanned_to, part.is_complete
                if time.monotonic() > until_s:
                    self.is_complete = False
                    return
            if self.is_complete:
                self.scanned_to = piece.stop - 1

    def error(self, path: Path, file: RecordFile) -> InvalidInputError:
        """Make one error for all records, with the code of the first."""
        texts = self.describe(file)
        code = self.listed[0][1].code
        if self.number == 1 and self.is_complete:
            return InvalidInputError(texts[0] + _OR_SKIP, code=code)
        # The file is named once.
        prefix = f"file '{path}', "
        texts = [text.removeprefix(prefix) for text in texts]
        scanned_to = file.place(self.scanned_to).removeprefix(prefix)
        up_to = "" if self.is_complete else f" up to {scanned_to}, where the scan ended after {SCAN_S:.0f} s"
        if self.number == 1:
            message = f"{prefix}{texts[0]} (the only broken record{up_to})"
        else:
            records = f"{self.number:,} broken records{up_to}"
            message = f"file '{path}' has {records}: {_join(texts, self.number)}"
        return InvalidInputError(message + _OR_SKIP, code=code)

    def _add(self, listed: Sequence[tuple[int, BrokenRecord]], number: int) -> None:
        self.listed += listed[: MAX_LISTED - len(self.listed)]
        self.number += number


def describe_left_out(number: int, first: Sequence[str]) -> str:
    """Describe the broken records that were left out.

    Args:
        number: Number of records, at least 1.
        first: Places and causes of the first of them.
    """
    return f"{format_count(number, 'broken record')} left out: {_join(first, number)}"


def _join(texts: Sequence[str], number: int) -> str:
    """Join texts "cause; remedy" of the first of `number` records, with each remedy once at the end."""
    parts = [text.rpartition("; ") for text in texts]
    causes = [cause for cause, _, _ in parts]
    more = [f"and {number - len(texts):,} more"] if number > len(texts) else []
    remedies = dict.fromkeys(remedy for _, _, remedy in parts)
    return "; ".join([*causes, *more, *remedies])
