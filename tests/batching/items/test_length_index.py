import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis import pack_windows
from hydraulis.batching import open_length_index, open_lengths
from hydraulis.batching.items.length_index import write_length_index

LENGTHS = long_tail(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.bin").write_bytes(b"x" * 50)
    write_length_index(
        tmp_path / "data.index", tmp_path / "data.bin", LENGTHS, pack_windows(LENGTHS, window_tokens=1000)
    )
    return tmp_path / "data.index"


def test_an_index_is_mapped(folder: Path) -> None:
    index = open_length_index(folder)
    assert all(
        isinstance(array, np.memmap) for array in (index.lengths, index.sequences, index.window_offsets)
    )
    assert index.lengths.tolist() == LENGTHS.tolist()
    windows = [index.window(number).tolist() for number in range(len(index.window_offsets) - 1)]
    assert sorted(i for one in windows for i in one) == list(range(60))
    assert max(LENGTHS[one].sum() for one in windows) <= index.window_tokens == 1000


def test_a_sampler_takes_the_path(folder: Path) -> None:
    assert list(sampler(folder, rank=0)) == list(sampler(LENGTHS, rank=0))


def test_an_index_of_other_data_is_refused(folder: Path) -> None:
    folder.with_name("data.bin").write_bytes(b"x" * 51)
    with refused("data_file_invalid", 50, 51, "hydraulis pack"):
        open_length_index(folder)
    folder.with_name("data.bin").unlink()
    assert open_lengths(folder).tolist() == LENGTHS.tolist()


@pytest.mark.parametrize("index", ["lengths.index", "elsewhere/lengths.index"])
def test_an_index_far_from_its_data_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    """As in the docs: the data in a folder below, and both named relative to the working directory."""
    whole = tmp_path / "whole"
    for name in ("examples", "elsewhere"):
        (whole / name).mkdir(parents=True)
    monkeypatch.chdir(whole)
    data = Path("examples/lengths.txt")
    data.write_text("3\n4\n", encoding="utf-8")
    write_length_index(Path(index), data, [3, 4], pack_windows([3, 4], window_tokens=8))
    monkeypatch.chdir(tmp_path)
    moved = whole.rename(tmp_path / "moved")
    assert open_lengths(moved / index).tolist() == [3, 4]
    (moved / data).write_text("3\n4\n5\n", encoding="utf-8")
    with refused("data_file_invalid", "lengths.txt", "hydraulis pack"):
        open_length_index(moved / index)


def test_data_without_a_relative_path_are_known_by_their_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_drive(*_: object) -> str:
        raise ValueError

    monkeypatch.setattr("os.path.relpath", other_drive)
    data = tmp_path / "data.txt"
    data.write_text("3\n", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    index = tmp_path / "elsewhere/data.index"
    write_length_index(index, data, [3], pack_windows([3], window_tokens=8))
    data.write_text("3\n4\n", encoding="utf-8")
    with refused("data_file_invalid", "data.txt"):
        open_length_index(index)


def test_an_incomplete_or_foreign_index_is_refused(folder: Path) -> None:
    facts = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    (folder / "index.json").write_text(json.dumps(facts | {"format": 1}), encoding="utf-8")
    with refused("data_file_invalid", "format 1"):
        open_length_index(folder)
    (folder / "index.json").unlink()
    with refused("file_unreadable"):
        open_length_index(folder)


def test_an_older_index_is_replaced_and_other_folders_stay(folder: Path) -> None:
    windows = pack_windows([3, 4], window_tokens=8)
    write_length_index(folder, folder.with_name("data.bin"), [3, 4], windows)
    assert open_lengths(folder).tolist() == [3, 4]
    other = folder.with_name("other.index")
    other.mkdir()
    (other / "mine.txt").write_text("keep", encoding="utf-8")
    with refused("file_unwritable", "other.index"):
        write_length_index(other, folder.with_name("data.bin"), [3, 4], windows)
    assert [path.name for path in other.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_columns_of_arrow_files_are_lengths(tmp_path: Path, kind: str) -> None:
    table = pa.table({"n": [4, 5, 6], "tokens": [[1, 2], [3], [4, 5, 6]]})
    path = tmp_path / ("data.parquet" if kind == "parquet" else "data.arrow")
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif kind == "file":
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    assert open_lengths(path, "n").tolist() == [4, 5, 6]
    assert open_lengths(path, "tokens").tolist() == [2, 1, 3]
    with refused("lengths_invalid", "'m'", "n, tokens"):
        open_lengths(path, "m")
    with refused("data_file_invalid", "--field"):
        open_lengths(path)


@pytest.mark.parametrize("name", ["data.parquet", "data.arrow"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no such format")
    with refused("data_file_invalid", name):
        open_lengths(tmp_path / name, "n")
    with refused("file_unreadable", "none"):
        open_lengths(tmp_path / f"none.{name}", "n")
