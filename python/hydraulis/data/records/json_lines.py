"""Files with one JSON object per line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydraulis.config.unreadable import why_no_json
from hydraulis.data.records.fields import check_fields
from hydraulis.errors import InvalidInputError

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

    def pieces(self) -> list[tuple[int, int]]:
        """Cut the file into ranges of bytes."""
        return [(start, min(start + PIECE_BYTES, self._size)) for start in range(0, self._size, PIECE_BYTES)]

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object]]]:
        """Read the records whose lines begin at byte `start` to before `stop`; blank lines are skipped.

        Raises:
            InvalidInputError: a line is no JSON object in UTF-8 (code `record_syntax`), or has not all
                fields (`record_field`).
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
                    yield where, self._values(line, where)
                where = file.tell()

    def place(self, where: int) -> str:
        """Name the line that begins at a byte."""
        lines = 1
        with self._path.open("rb") as file:
            while where > 0 and (block := file.read(min(where, 1 << 20))):
                lines += block.count(b"\n")
                where -= len(block)
        return f"file '{self._path}', line {lines}"

    def _values(self, line: bytes, where: int) -> Sequence[object]:
        try:
            record = json.loads(line.decode().rstrip())
        except UnicodeDecodeError as error:
            message = f"{self.place(where)} is not UTF-8 (byte {error.start}): save the file as UTF-8 text"
            raise InvalidInputError(message, code="record_syntax") from None
        except (ValueError, RecursionError) as error:
            message = f"{self.place(where)} is no JSON ({why_no_json(error)}): write one object per line"
            raise InvalidInputError(message, code="record_syntax") from None
        if not isinstance(record, dict):
            message = f"{self.place(where)} is no JSON object: write one per line"
            raise InvalidInputError(message, code="record_syntax")
        # Its place takes a reading of the file up to it.
        if not all(name in record for name in self._fields):
            check_fields(record, self._fields, self.place(where))
        return [record[name] for name in self._fields]
