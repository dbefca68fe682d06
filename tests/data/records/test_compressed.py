"""Compressed files: damage is refused with the file, and a large file needs no memory of its size."""

import gzip
from pathlib import Path

import pyarrow
import pytest

from data.records.test_record_files import zstd
from helpers import refused
from hydraulis.data.records.record_file import is_record_file, open_records

LINES = b"".join(b'{"n": %d}\n' % number for number in range(5000))


def read(path: Path) -> list[object]:
    file = open_records(path, ("n",))
    return [values for ends in file.pieces() for _, values in file.records(*ends)]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", zstd)])
def test_a_damaged_file_is_refused(tmp_path: Path, ending: str, pack: object) -> None:
    path = tmp_path / f"x.jsonl{ending}"
    packed = pack(LINES)  # type: ignore[operator]
    path.write_bytes(packed)
    assert read(path) == [[number] for number in range(5000)]
    for damaged in (packed[:-40], b"this is none"):
        path.write_bytes(damaged)
        with refused("data_file_invalid", path):
            read(path)


def test_an_empty_file_has_no_record(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    assert read(path) == []


def test_only_formats_without_a_compression_of_their_own_are_unpacked() -> None:
    assert [is_record_file(Path(name)) for name in ("x.csv.zst", "x.JSON.GZ", "x.parquet.gz", "x.gz")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_extra_is_named_where_zstd_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(zstd(LINES))
    assert pyarrow
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with refused("extra_missing", "'pyarrow'", path):
        read(path)
