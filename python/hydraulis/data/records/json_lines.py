"""JSON Lines: files with one JSON object per line."""

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hydraulis.data.records.fields import BrokenRecord, find_missing_field
from hydraulis.text.documents import describe_json_error

# Large enough to make the start of a piece cheap, and small enough to lose little work to a killed run.
PIECE_BYTES = 4 << 20
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """A `.jsonl` file in pieces of bytes: a piece has the lines that begin in it.

    Args:
        path: Path of the file.
        fields: Names of the fields to read.
        optional: Names of those that a record may lack.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, fields: Sequence[str], optional: Collection[str] = ()) -> None:
        path.open("rb").close()
        self._path = path
        self._fields = fields
        self._required = [name for name in fields if name not in optional]
        self._size = path.stat().st_size
        # A byte position and the number of its line.
        self._counted = (0, 1)

    def pieces(self) -> list[tuple[int, int]]:
        """Divide the file into ranges of bytes."""
        return [(start, min(start + PIECE_BYTES, self._size)) for start in range(0, self._size, PIECE_BYTES)]

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object] | BrokenRecord]]:
        """Yield the records whose lines begin from byte `start` to before `stop`, without blank lines.

        A line is broken if it is no JSON object in UTF-8 or lacks a field (code `record_malformed`).
        """
        with self._path.open("rb") as file:
            if start:
                file.seek(start - 1)
                if not _skip_line(file, stop):
                    return
            where = file.tell()
            while where < stop and (line := file.readline()):
                if where == 0:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if not line.isspace():
                    yield where, self._values(line)
                where = file.tell()

    def place(self, where: int) -> str:
        """Return the file and the line number of the line at a byte position."""
        # Places are requested in order, so the count starts at the last one.
        start, lines = self._counted if self._counted[0] <= where else (0, 1)
        with self._path.open("rb") as file:
            file.seek(start)
            while start < where and (block := file.read(min(where - start, _BLOCK_BYTES))):
                lines += block.count(b"\n")
                start += len(block)
        self._counted = where, lines
        return f"file '{self._path}', line {lines}"

    def _values(self, line: bytes) -> Sequence[object] | BrokenRecord:
        record = parse_line(line)
        if isinstance(record, BrokenRecord):
            return record
        return find_missing_field(record, self._required) or [record.get(name) for name in self._fields]


def _skip_line(file: BinaryIO, stop: int) -> bool:
    """Skip the rest of a line; return false, without reading on, if it does not end before byte `stop`."""
    while (left := stop - file.tell()) > 0:
        part = file.readline(min(left, _BLOCK_BYTES))
        if part.endswith(b"\n"):
            return True
        if not part:
            return False
    return False


def parse_line(line: bytes) -> dict[str, Any] | BrokenRecord:
    """Parse a line; it is broken if it is no JSON object in UTF-8."""
    try:
        record = json.loads(line.decode().rstrip())
    except UnicodeDecodeError as error:
        reason = f" is not UTF-8 (byte {error.start}); save the file as UTF-8 text"
        return BrokenRecord(reason, code="record_malformed")
    except (ValueError, RecursionError) as error:
        reason = f" is no JSON ({describe_json_error(error)}); write one object per line"
        return BrokenRecord(reason, code="record_malformed")
    if not isinstance(record, dict):
        return BrokenRecord(" is no JSON object; write one object per line", code="record_malformed")
    return record


def parse_lines(content: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | BrokenRecord]]:
    """Yield the records of a stream, each with its line number counted from 1, without blank lines."""
    for number, line in enumerate(content, start=1):
        if not line.isspace():
            yield number, parse_line(line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line)
