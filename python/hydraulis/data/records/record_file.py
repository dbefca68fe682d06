"""The interface of a file of records, and the formats by file ending."""

from collections.abc import Callable, Collection, Iterator, Sequence
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
        """Return consecutive ranges of positions, each small enough for memory."""

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object] | BrokenRecord]]:
        """Yield the position and the values of each record in one range."""

    def place(self, where: int) -> str:
        """Return the file and the place of a record, for a message."""


_FORMATS: dict[str, Callable[[Path, Sequence[str], Collection[str]], RecordFile]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
}


def is_record_file(path: Path) -> bool:
    """Whether the file's ending is that of a format with records."""
    return path.suffix.lower() in _FORMATS


def open_records(path: Path, fields: Sequence[str], optional: Collection[str] = ()) -> RecordFile:
    """Open a file of records.

    Args:
        path: Path of the file; its ending determines the format.
        fields: Names of the fields to read.
        optional: Names of those that a record may lack; their value is None then.

    Raises:
        InvalidInputError: The file cannot be read (code `data_file_invalid`).
        HydraulisError: The library of the format is not installed (code `extra_missing`).
    """
    try:
        return _FORMATS[path.suffix.lower()](path, fields, optional)
    except OSError as error:
        message = (
            f"file '{path}' cannot be read ({describe_read_error(path, error)}); check the path and the file"
        )
        raise InvalidInputError(message, code="data_file_invalid") from error
