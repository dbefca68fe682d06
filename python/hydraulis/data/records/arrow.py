"""Arrow files: streams of record batches, as written by Hugging Face's datasets, and Feather."""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydraulis.data.records.columnar import iterate_rows, reading_columns
from hydraulis.data.records.fields import check_fields
from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra

_PIECE_ROWS = 4096
_RANDOM_ACCESS = b"ARROW1"
# A message of a stream begins with the first half; a message without a length is the end.
_MESSAGE, _NO_LENGTH = b"\xff" * 4, bytes(4)


class ArrowFile:
    """A mapped `.arrow` file in pieces of record batches.

    Args:
        path: Path of the file.
        fields: Names of the fields to read.
        optional: Names of those that a record may lack.

    Raises:
        InvalidInputError: The file is no Arrow file, or a stream without its end (code `data_file_invalid`),
            or lacks a field or has it twice (`record_malformed`).
        HydraulisError: pyarrow is not installed (code `extra_missing`).
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, fields: Sequence[str], optional: Collection[str] = ()) -> None:
        self._pyarrow: Any = import_extra("pyarrow", f"the Arrow file '{path}'")
        self._path = path
        self._fields = fields
        with path.open("rb") as file:
            self._is_stream = file.read(len(_RANDOM_ACCESS)) != _RANDOM_ACCESS
        with reading_columns(path, "Arrow"):
            names = self._open().schema.names
        if self._is_stream:
            _check_end(path)
        check_fields(names, fields, optional, f"file '{path}'")

    def pieces(self) -> list[tuple[int, int]]:
        """Return the rows of each run of record batches; reads only the batches' headers."""
        pieces, first, where, is_cut = [], 0, 0, True
        with reading_columns(self._path, "Arrow"):
            for batch in self._batches():
                where += batch.num_rows
                is_cut = where - first >= _PIECE_ROWS
                if is_cut:
                    pieces.append((first, where))
                    first = where
        return pieces if is_cut else [*pieces, (first, where)]

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object]]]:
        """Yield the rows from `start` to before `stop`, both of them bounds of record batches."""
        where = 0
        with reading_columns(self._path, "Arrow"):
            for batch in self._batches():
                if where >= stop:
                    return
                if where >= start:
                    yield from enumerate(iterate_rows(batch, self._fields), start=where)
                where += batch.num_rows

    def place(self, where: int) -> str:
        """Return the file and the number of a row, counted from 0."""
        return f"file '{self._path}', row {where}"

    def _open(self) -> Any:
        ipc: Any = import_extra("pyarrow.ipc", f"the Arrow file '{self._path}'")
        mapped = self._pyarrow.memory_map(str(self._path))
        return ipc.open_stream(mapped) if self._is_stream else ipc.open_file(mapped)

    def _batches(self) -> Iterator[Any]:
        reader = self._open()
        if self._is_stream:
            yield from reader
        else:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _check_end(path: Path) -> None:
    """Refuse a stream whose writer was stopped: up to its last whole batch it reads like a whole one."""
    with path.open("rb") as file:
        begins = file.read(len(_MESSAGE))
        file.seek(-len(_MESSAGE + _NO_LENGTH), os.SEEK_END)
        end = file.read()
    # Before Arrow 0.15 a message began with its length.
    if begins == _MESSAGE and end != _MESSAGE + _NO_LENGTH:
        message = (
            f"Arrow file '{path}' has no end: its writer was stopped, and rows may be missing; write it "
            "again, and close the writer"
        )
        raise InvalidInputError(message, code="data_file_invalid")
