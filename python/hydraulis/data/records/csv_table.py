"""CSV: a line with the names of the fields, then a record for each row, all of them texts in UTF-8."""

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from hydraulis.data.records.fields import BrokenRecord
from hydraulis.text.values import format_count

# The largest size that the module csv accepts for a field on every platform; its default is 128 KiB.
_LARGEST_FIELD = (1 << 31) - 1


def parse_csv(content: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | BrokenRecord]]:
    """Yield the rows, each with the number of its first line, counted from 1.

    Commas separate the fields; quotes may enclose a field with commas, quotes (doubled) and line ends. A row
    is broken if its quotes are, if it has another number of fields than the first line, or if it is no UTF-8.
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
                yield line, _broken(f" is no CSV ({error}); correct its quotes")
                continue
            if not row:
                continue
            if names is None:
                names = row
            else:
                yield line, _record(names, row)
    finally:
        # The stream belongs to the caller.
        text.detach()


def _record(names: list[str], row: list[str]) -> dict[str, Any] | BrokenRecord:
    if len(row) != len(names):
        fields = format_count(len(row), "field")
        return _broken(
            f" has {fields}, and the first line has {len(names)}; quote fields that contain commas"
        )
    for value in row:
        try:
            value.encode()
        except UnicodeEncodeError:
            return _broken(" is not UTF-8; save the file as UTF-8 text")
    return dict(zip(names, row, strict=True))


def _broken(reason: str) -> BrokenRecord:
    return BrokenRecord(reason, code="record_malformed")
