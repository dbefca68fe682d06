import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import refused
from hydraulis.batching import open_lengths
from hydraulis.batching.items.lengths import summarize


class ArrowDataset:
    """The part of `datasets.Dataset` that gives a column with its selection and order applied."""

    def __init__(self, table: pa.Table, rows: list[int]) -> None:
        self._table = table
        self._rows = rows
        self.column_names = table.column_names

    def select_columns(self, names: list[str]) -> "ArrowDataset":
        return ArrowDataset(self._table.select(names), self._rows)

    def with_format(self, kind: str) -> "ArrowDataset":
        assert kind == "arrow"
        return self

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> pa.Table:
        assert rows == slice(None)
        return self._table.take(self._rows)


TABLE = pa.table(
    {"n": [4, 5, 6], "tokens": [[1, 2], [3], [4, 5, 6]], "text": ["a", "b", "c"], "hole": [1, None, 2]}
)


def write_megatron(path: Path, lengths: list[int]) -> None:
    pointers = np.cumsum([0, *lengths[:-1]]) * 2
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    arrays = [np.array(lengths, "<i4"), pointers.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8")]
    path.write_bytes(head + b"".join(array.tobytes() for array in arrays))


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_arrays_are_not_copied(dtype: str) -> None:
    lengths = np.array([3, 4], dtype=dtype)
    assert open_lengths(lengths) is lengths


def test_columns_have_lengths_or_lists() -> None:
    assert open_lengths(TABLE, "n").tolist() == [4, 5, 6]
    assert open_lengths(TABLE, "tokens").tolist() == [2, 1, 3]
    assert open_lengths(ArrowDataset(TABLE, [2, 0]), "tokens").tolist() == [3, 2]
    chunked = pa.concat_tables([TABLE, TABLE.slice(1)])
    assert open_lengths(chunked, "tokens").tolist() == [2, 1, 3, 1, 3]


def test_the_index_of_megatron_is_mapped(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data.idx", [7, 8, 9])
    lengths = open_lengths(tmp_path / "data.idx")
    assert isinstance(lengths, np.memmap)
    assert lengths.tolist() == [7, 8, 9]
    (tmp_path / "torn.idx").write_bytes((tmp_path / "data.idx").read_bytes()[:40])
    with refused("data_file_invalid", "torn.idx"):
        open_lengths(tmp_path / "torn.idx")
    with refused("file_unreadable", "none.idx"):
        open_lengths(tmp_path / "none.idx")


def test_files_are_read_by_their_ending(tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.array([5, 6], dtype=np.uint16))
    assert isinstance(open_lengths(str(tmp_path / "lengths.npy")), np.memmap)
    (tmp_path / "data.jsonl").write_text('{"n": 3}\n{"n": [1, 2]}\n', encoding="utf-8")
    assert open_lengths(tmp_path / "data.jsonl", "n").tolist() == [3, 2]


@pytest.mark.parametrize("column", ["n", "tokens"])
def test_a_parquet_file_is_read_in_batches(
    tmp_path: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set's tokens do not fit into memory, its lengths do."""
    rows = [[7] * size for size in range(1, 8)]
    table = pa.table({"n": list(range(1, 8)), "tokens": rows})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=2)
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    assert open_lengths(tmp_path / "data.parquet", column).tolist() == list(range(1, 8))


def test_a_parquet_file_with_a_damaged_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"length": [1, 2]}), path)
    path.write_bytes(path.read_bytes().replace(b"length", b"leng\xe7h"))
    with refused("data_file_invalid", path):
        open_lengths(path, "length")


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "data.parquet")
    for column in ("n", "tokens"):
        with refused("lengths_invalid", "at least 1"):
            open_lengths(tmp_path / "data.parquet", column)


@pytest.mark.parametrize("source", [[], [1.5], [[1, 2]], [[1, 2], [3]], ["a"]])
def test_other_lengths_are_refused(source: Any) -> None:
    with refused("lengths_invalid", "lengths"):
        open_lengths(source)


@pytest.mark.parametrize(("column", "part"), [("m", "n, tokens"), ("text", "string"), ("hole", "1 nulls")])
def test_other_columns_are_refused(column: str, part: str) -> None:
    with refused("lengths_invalid", column, part):
        open_lengths(TABLE, column)


@pytest.mark.parametrize(
    ("values", "part"), [([[[1, 2]], [[3]]], "list<"), ([["a"], ["b"]], "string"), ([[0.5], [1.5]], "double")]
)
def test_lists_of_anything_but_tokens_are_refused(values: list[Any], part: str) -> None:
    """A list of lists would count as a sequence of one token."""
    with refused("lengths_invalid", "column 'rows'", part, "whole numbers"):
        open_lengths(pa.table({"rows": values}), "rows")


def test_a_summary_does_not_depend_on_the_dtype() -> None:
    assert summarize(np.array([3, 9, 9], dtype=np.uint16)) == summarize(np.array([3, 9, 9], dtype=np.int64))
    summary = summarize(np.array([3, 9, 9]))
    assert (summary.sequences, summary.tokens, summary.longest, summary.longest_tokens) == (3, 21, 1, 9)


@pytest.mark.parametrize("wrong", [0, -4, 2**40])
def test_a_length_outside_its_range_is_named(wrong: int) -> None:
    lengths = np.ones(2**20 + 5, dtype=np.int64)
    lengths[2**20 + 3] = wrong
    with refused("lengths_invalid", f"sequence {2**20 + 3} has length {wrong}"):
        summarize(lengths)


def test_a_length_beyond_signed_numbers_is_named() -> None:
    with refused("lengths_invalid", f"sequence 1 has length {2**63 + 5}"):
        summarize(np.array([4, 2**63 + 5], dtype=np.uint64))


@pytest.mark.parametrize("source", [[{"n": [1]}], {"n": [[1]]}, SimpleNamespace(column_names=["n"])])
def test_a_column_of_no_data_set_is_refused(source: object) -> None:
    """The last one has the attributes of a streamed data set."""
    with refused("lengths_invalid", "column 'n'", type(source).__name__):
        open_lengths(source, "n")
