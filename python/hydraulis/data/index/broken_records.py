"""The broken records of a file, reported together so that all of them can be corrected at once."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.record_file import RecordFile
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import format_count

if TYPE_CHECKING:
    from hydraulis.data.index.job import Block, Piece

# Number of records that a message lists; the others are counted.
MAX_LISTED = 10
# Time limit of the search for further broken records after the first.
SCAN_S = 10.0
_OR_SKIP = '; data.broken_records = "skip" (--broken-records skip) leaves such records out'


@dataclass(slots=True)
class BrokenRecords:
    """The broken records in the scanned part of one file.

    A position is a place in the file as `RecordFile` counts it.

    Attributes:
        file: Number of the file.
        listed: Positions and causes of the first broken records.
        number: Number of all broken records.
        num_readable: Number of readable records.
        scanned_to: Position of the last scanned record.
        is_complete: Whether the scan did not reach its time limit.
    """

    file: int
    listed: list[tuple[int, BrokenRecord]] = field(default_factory=list)
    number: int = 0
    num_readable: int = 0
    scanned_to: int = 0
    is_complete: bool = True

    @classmethod
    def scan_piece(
        cls,
        file: int,
        num_readable: int,
        first: tuple[int, BrokenRecord],
        others: Iterable[tuple[int, object]],
    ) -> Self:
        """Collect the broken records of a piece from the first one on.

        Args:
            file: Number of the file.
            num_readable: Number of readable records before it.
            first: Position of the first broken record, and the record.
            others: Positions and values of the records after it.
        """
        broken = cls(file, num_readable=num_readable)
        broken.add(*first)
        until_s = time.monotonic() + SCAN_S
        for place, record in others:
            broken.scanned_to = place
            if isinstance(record, BrokenRecord):
                broken.add(place, record)
            else:
                broken.num_readable += 1
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

    def scan_rest(self, later: Iterable[tuple["Piece", Iterable["Block | Self"]]]) -> None:
        """Scan the rest of the file.

        Args:
            later: The following pieces, each with its blocks and its broken records.
        """
        until_s = time.monotonic() + SCAN_S
        for piece, parts in later:
            if piece.file != self.file or not self.is_complete:
                return
            for part in parts:
                if not isinstance(part, BrokenRecords):
                    self.num_readable += len(part.lengths) + part.num_without_target
                else:
                    self._add(part.listed, part.number)
                    self.num_readable += part.num_readable
                    self.scanned_to, self.is_complete = part.scanned_to, part.is_complete
                if time.monotonic() > until_s:
                    self.is_complete = False
                    return
            if self.is_complete:
                self.scanned_to = piece.stop - 1

    def error(self, path: Path, file: RecordFile) -> InvalidInputError:
        """Make one error for all records, with the code of the first.

        It advises to skip them only if the file has readable records.
        """
        code = self.listed[0][1].code
        # The file is named once.
        prefix = f"file '{path}', "
        scanned_to = file.place(self.scanned_to).removeprefix(prefix)
        up_to = "" if self.is_complete else f" up to {scanned_to}, where the scan ended after {SCAN_S:.0f} s"
        texts = self._texts(file, prefix)
        first = f"{file.place(self.listed[0][0]).removeprefix(prefix)}{self.listed[0][1].reason}"
        if self.number == 1:
            message = prefix + first + ("" if self.is_complete else f" (the only broken record{up_to})")
        elif self.num_readable:
            records = f"{self.number:,} broken records{up_to}"
            message = f"file '{path}' has {records}: {_join(texts, self.number - len(self.listed))}"
        else:
            # A wrong setting, and not a few wrong records.
            message = (
                f"file '{path}' has no readable record, {self.number:,} are broken{up_to}; the first: {first}"
            )
        return InvalidInputError(message + (_OR_SKIP if self.num_readable else ""), code=code)

    def _texts(self, file: RecordFile, prefix: str) -> list[str]:
        """Describe the listed records; those with the same cause together."""
        places: dict[str, list[str]] = {}
        for where, broken in self.listed:
            places.setdefault(broken.reason, []).append(file.place(where).removeprefix(prefix))
        texts = []
        for reason, (first, *others) in places.items():
            cause, _, remedy = reason.rpartition("; ")
            also = f" (also {', '.join(others)})" if others else ""
            texts.append(f"{first}{cause}{also}; {remedy}")
        return texts

    def _add(self, listed: Sequence[tuple[int, BrokenRecord]], number: int) -> None:
        self.listed += listed[: MAX_LISTED - len(self.listed)]
        self.number += number


def describe_left_out(number: int, first: Sequence[str]) -> str:
    """Describe the broken records that were left out.

    Args:
        number: Number of records, at least 1.
        first: Places and causes of the first of them.
    """
    return f"{format_count(number, 'broken record')} left out: {_join(first, number - len(first))}"


def _join(texts: Sequence[str], num_others: int) -> str:
    """Join texts "cause; remedy", with the number of other records and each remedy once at the end."""
    parts = [text.rpartition("; ") for text in texts]
    causes = [cause for cause, _, _ in parts]
    more = [f"and {num_others:,} more"] if num_others else []
    remedies = dict.fromkeys(remedy for _, _, remedy in parts)
    return "; ".join([*causes, *more, *remedies])
