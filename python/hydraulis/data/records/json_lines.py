"""Files with one JSON object per line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydraulis.data.records.fields import BrokenRecord, find_missing_field
from hydraulis.text.paths import describe_json_error

# Large enough that starting a piece costs nothing, small enough that little is lost when a run is killed.
PIECE_BYTES = 4 << 20
_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """A `.jsonl` file, cut at bytes: a piece holds the lines that begin in it.

    Args:
        path: the file.
        fields: that are wanted of each record.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        self._path = path
        self._fields = fields
        self._size = path.stat().st_size
        # A byte, and the number of the line that it is in.
        self._counted = (0, 1)

    def pieces(self) -> list[tuple[int, int]]:
        """Cut the file into ranges of bytes."""
        return [(start, min(start + PIECE_BYTES, self._size)) for start in range(0, self._size, PIECE_BYTES)]

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object] | BrokenRecord]]:
        """Read the records whose lines begin at byte `start` to before `stop`; blank lines are skipped.

        A line is broken if it is no JSON object in UTF-8 or lacks a field (code `record_malformed`).
        """
        with self._path.open("rb") as file:
            if start:
                # The rest of a line that begins before.
                file.seek(start - 1)
                file.readline()
            where = file.tell()
            while where < stop and (line := file.readline()):
                if where == 0:
                    # Some editors start a UTF-8 file with a mark.
                    line = line.removeprefix(_MARK)
                if not line.isspace():
                    yield where, self._values(line)
                where = file.tell()

    def place(self, where: int) -> str:
        """Name the line that begins at a byte."""
        # Those of a list come in order: what was counted for one is not counted again.
        start, lines = self._counted if self._counted[0] <= where else (0, 1)
        with self._path.open("rb") as file:
            file.seek(start)
            while start < where and (block := file.read(min(where - start, 1 << 20))):
                lines += block.count(b"\n")
                start += len(block)
        self._counted = where, lines
        return f"file '{self._path}', line {lines}"

    def _values(self, line: bytes) -> Sequence[object] | BrokenRecord:
        try:
            record = json.loads(line.decode().rstrip())
        except UnicodeDecodeError as error:
            why = f" is not UTF-8 (byte {error.start}): save the file as UTF-8 text"
            return BrokenRecord(why, code="record_malformed")
        except (ValueError, RecursionError) as error:
            why = f" is no JSON ({describe_json_error(error)}): write one object per line"
            return BrokenRecord(why, code="record_malformed")
        if not isinstance(record, dict):
            return BrokenRecord(" is no JSON object: write one per line", code="record_malformed")
        return find_missing_field(record, self._fields) or [record[name] for name in self._fields]
