"""Parquet files, read by row groups."""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from hydraulis.data.records.columnar import iterate_rows, reading_columns
from hydraulis.data.records.fields import check_fields
from hydraulis.extras import import_extra

# Rows in one decoded batch.
_ROWS = 1024


class ParquetFile:
    """A `.parquet` file in pieces of row groups; only the columns of the fields are read.

    Args:
        path: Path of the file.
        fields: Names of the fields to read.
        optional: Names of those that a record may lack.

    Raises:
        InvalidInputError: The file is no Parquet file (code `data_file_invalid`), or lacks a field
            (`record_malformed`).
        HydraulisError: pyarrow is not installed (code `extra_missing`).
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, fields: Sequence[str], optional: Collection[str] = ()) -> None:
        parquet: Any = import_extra("pyarrow.parquet", f"the Parquet file '{path}'")
        # The errors of opening a file say more than pyarrow's.
        path.open("rb").close()
        with reading_columns(path, "Parquet"):
            self._file = parquet.ParquetFile(path)
            names = self._file.schema_arrow.names
        check_fields(names, fields, optional, f"file '{path}'")
        self._path = path
        self._fields = fields
        self._columns = [name for name in fields if name in names]

    def pieces(self) -> list[tuple[int, int]]:
        """Return the rows of each row group."""
        with reading_columns(self._path, "Parquet"):
            metadata = self._file.metadata
            sizes = [metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        return list(pairwise(accumulate(sizes, initial=0)))

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object]]]:
        """Yield the rows from `start` to before `stop`, both of them bounds of row groups."""
        pieces = enumerate(self.pieces())
        groups = [number for number, (first, last) in pieces if start <= first and last <= stop]
        where = start
        with reading_columns(self._path, "Parquet"):
            for batch in self._file.iter_batches(_ROWS, row_groups=groups, columns=self._columns):
                for values in iterate_rows(batch, self._fields):
                    yield where, values
                    where += 1

    def place(self, where: int) -> str:
        """Return the file and the number of a row, counted from 0."""
        return f"file '{self._path}', row {where}"
