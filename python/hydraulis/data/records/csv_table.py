"""CSV: a line with the names of the fields, then a record for each row, all of them texts in UTF-8."""

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from hydraulis.data.records.fields import BrokenRecord, UnreadableRestError
from hydraulis.text.values import format_count

# The largest size that the module csv accepts for a field on every platform; its default is 128 KiB.
_LARGEST_FIELD = (1 << 31) - 1
# The error of a quote that is open at the end of the file.
_OPEN_QUOTE = "unexpected end of data"


def parse_csv(content: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | BrokenRecord]]:
    """Yield the rows, each with the number of its first line, counted from 1.

    Commas separate the fields; quotes may enclose a field with commas, quotes (doubled) and line ends. A row
    is broken if its quotes are, if it has another number of fields than the first line, or if it is no UTF-8.

    Raises:
        UnreadableRestError: A row opens a quote that no later line closes, or the fields' names are no CSV or
            have one twice.
    """
    csv.field_size_limit(_LARGEST_FIELD)
    # Surrogates stand for bytes that are not UTF-8, so that the row with them is known.
    text = io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, strict=True)
    names: list[str] | None = None
    try:
        while True:
            line = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if str(error) == _OPEN_QUOTE:
                    raise UnreadableRestError(line, " opens a quote that no line closes") from error
                if names is None:
                    reason = f" names the fields and is no CSV ({error}); correct its quotes"
                    raise UnreadableRestError(line, reason) from error
                yield line, _broken(f" is no CSV ({error}){_end(line, reader.line_num)}; correct its quotes")
                continue
            if not row:
                continue
            if names is None:
                names = row
                twice = next((name for name in names if names.count(name) > 1), None)
                if twice is not None:
                    raise UnreadableRestError(line, f" names the field '{twice}' twice; rename one of them")
            else:
                yield line, _record(names, row, _end(line, reader.line_num))
    finally:
        # The stream belongs to the caller.
        text.detach()


def _end(first: int, last: int) -> str:
    """Return a remark on a row of several lines, otherwise an empty string."""
    return f", opens a quote that ends in line {last}" if last > first else ""


def _record(names: list[str], row: list[str], end: str) -> dict[str, Any] | BrokenRecord:
    if len(row) != len(names):
        fields = format_count(len(row), "field")
        return _broken(
            f" has {fields}, and the first line has {len(names)}{end}; quote fields that contain commas"
        )
    for value in row:
        try:
            value.encode()
        except UnicodeEncodeError:
            return _broken(f" is not UTF-8{end}; save the file as UTF-8 text")
    return dict(zip(names, row, strict=True))


def _broken(reason: str) -> BrokenRecord:
    return BrokenRecord(reason, code="record_malformed")
