"""Parquet files."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from hydraulis.data.records.fields import check_fields, iterate_rows
from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra

# Rows that are decoded together.
_ROWS = 1024


class ParquetFile:
    """A `.parquet` file, cut at its row groups; only the columns of the wanted fields are read.

    Args:
        path: the file.
        fields: that are wanted of each record.

    Raises:
        InvalidInputError: it is no Parquet file (code `data_file_invalid`), or lacks a field
            (`record_malformed`).
        HydraulisError: pyarrow is not installed (code `extra_missing`).
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        pyarrow: Any = import_extra("pyarrow", f"the Parquet file '{path}'")
        parquet: Any = import_extra("pyarrow.parquet", f"the Parquet file '{path}'")
        try:
            self._file = parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            message = f"file '{path}' is no Parquet file ({error}); write it again"
            raise InvalidInputError(message, code="data_file_invalid") from error
        check_fields(self._file.schema_arrow.names, fields, f"file '{path}'")
        self._path = path
        self._fields = fields

    def pieces(self) -> list[tuple[int, int]]:
        """Cut the file into its row groups, by rows."""
        metadata = self._file.metadata
        sizes = (metadata.row_group(group).num_rows for group in range(self._file.num_row_groups))
        return list(pairwise(accumulate(sizes, initial=0)))

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object]]]:
        """Read the rows from one to before another, both of them first rows of row groups."""
        pieces = enumerate(self.pieces())
        groups = [number for number, (first, last) in pieces if start <= first and last <= stop]
        where = start
        for batch in self._file.iter_batches(_ROWS, row_groups=groups, columns=list(self._fields)):
            for values in iterate_rows(batch, self._fields):
                yield where, values
                where += 1

    def place(self, where: int) -> str:
        """Name a row, counted from 0."""
        return f"file '{self._path}', row {where}"
