"""The interface of a file of records, and the formats by file ending."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hydraulis.data.records.arrow import ArrowFile
from hydraulis.data.records.compressed import COMPRESSIONS, inner_suffix, open_stream
from hydraulis.data.records.csv_table import parse_csv
from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.json_array import is_json_array, parse_json_array
from hydraulis.data.records.json_lines import JsonLines, parse_lines
from hydraulis.data.records.parquet import ParquetFile
from hydraulis.data.records.streamed import StreamedFile
from hydraulis.errors import InvalidInputError
from hydraulis.text.documents import describe_read_error


class RecordFile(Protocol):
    """A file of records."""

    def pieces(self) -> list[tuple[int, int]]:
        """Return consecutive ranges of positions, each small enough for memory."""

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object] | BrokenRecord]]:
        """Yield the position and the values of each record in one range."""

    def place(self, where: int) -> str:
        """Return the file and the place of a record, for a message."""


_Format = Callable[[Path, Sequence[str], Collection[str]], RecordFile]


def _json_lines(path: Path, fields: Sequence[str], optional: Collection[str]) -> RecordFile:
    if path.suffix.lower() in COMPRESSIONS:
        return StreamedFile(path, fields, optional, parse_lines, "line")
    return JsonLines(path, fields, optional)


def _json(path: Path, fields: Sequence[str], optional: Collection[str]) -> RecordFile:
    with open_stream(path) as (content, _):
        is_array = is_json_array(content)
    if is_array:
        return StreamedFile(path, fields, optional, parse_json_array, "record")
    return _json_lines(path, fields, optional)


def _csv(path: Path, fields: Sequence[str], optional: Collection[str]) -> RecordFile:
    return StreamedFile(path, fields, optional, parse_csv, "line")


_FORMATS: dict[str, _Format] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
}
# Formats that have no compression of their own.
_TEXT_FORMATS = (".jsonl", ".ndjson", ".json", ".csv")
RECORD_ENDINGS = (
    f"{', '.join(_FORMATS)} (the first {len(_TEXT_FORMATS)} also with {' or '.join(COMPRESSIONS)})"
)


def is_record_file(path: Path) -> bool:
    """Whether the file's ending is that of a format with records."""
    is_compressed = path.suffix.lower() in COMPRESSIONS
    return inner_suffix(path) in (_TEXT_FORMATS if is_compressed else _FORMATS)


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
        return _FORMATS[inner_suffix(path)](path, fields, optional)
    except OSError as error:
        message = (
            f"file '{path}' cannot be read ({describe_read_error(path, error)}); check the path and the file"
        )
        raise InvalidInputError(message, code="data_file_invalid") from error
