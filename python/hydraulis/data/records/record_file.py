"""What every kind of file with records offers, and which kind a path is of."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hydraulis.data.records.arrow import ArrowFile
from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.json_lines import JsonLines
from hydraulis.data.records.parquet import ParquetFile
from hydraulis.errors import InvalidInputError
from hydraulis.text.paths import describe_read_error


class RecordFile(Protocol):
    """A file of records."""

    def pieces(self) -> list[tuple[int, int]]:
        """Cut the file into consecutive ranges of places, each small enough to be held in memory."""

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object] | BrokenRecord]]:
        """Read the records of one range: where in it each stands, and its values."""

    def place(self, where: int) -> str:
        """Say where a record stands, for a message."""


_KINDS: dict[str, Callable[[Path, Sequence[str]], RecordFile]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
}


def is_record_file(path: Path) -> bool:
    """Whether files of this kind hold records."""
    return path.suffix.lower() in _KINDS


def open_records(path: Path, fields: Sequence[str]) -> RecordFile:
    """Open a file of records.

    Args:
        path: the file; its ending says of which kind it is.
        fields: that are wanted of each record.

    Raises:
        InvalidInputError: the file cannot be read (code `data_file_invalid`).
        HydraulisError: the library that reads it is not installed (code `extra_missing`).
    """
    try:
        return _KINDS[path.suffix.lower()](path, fields)
    except OSError as error:
        message = (
            f"file '{path}' cannot be read ({describe_read_error(path, error)}); check the path and the file"
        )
        raise InvalidInputError(message, code="data_file_invalid") from error
