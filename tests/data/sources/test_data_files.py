"""Files are compared without reading them."""

import os
from pathlib import Path

import numpy as np
import pytest

from data.sources.test_token_files import write_megatron
from helpers import refused
from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.data.sources.data_files import (
    DataFile,
    describe_changed_times,
    describe_difference,
    list_data_files,
)


def test_data_files_are_those_of_all_sources_in_order(tmp_path: Path) -> None:
    for name, size in (("b", 3), ("a", 5), ("c", 7)):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n" * size)
    sources = tuple(SourceConfig(files=(str(tmp_path / name),)) for name in ("b.jsonl", "[ac].jsonl"))
    found = list_data_files(DataConfig(tokens_per_batch=8, sources=sources))
    assert [(Path(file.path).stem, file.bytes) for file in found] == [("b", 3), ("a", 5), ("c", 7)]
    (tmp_path / "b.jsonl").unlink()
    with refused("file_unreadable", tmp_path / "b.jsonl"):
        list_data_files(DataConfig(tokens_per_batch=8, sources=sources))


@pytest.mark.parametrize(
    ("now", "parts"),
    [
        ("a3 b5", None),
        # Moved or renamed files may have the same content.
        ("other/a3 c5", None),
        ("a3 b1200", ["'b'", "1,200 bytes", "5"]),
        ("a3", ["'b'", "removed"]),
        ("a3 c6", ["'b'", "removed"]),
        ("a3 b5 c1", ["'c'", "new"]),
        ("b5 a3", ["order"]),
    ],
)
def test_the_first_difference_is_named(now: str, parts: list[str] | None) -> None:
    before, after = (
        [
            DataFile(path=word.rstrip("0123456789"), bytes=int(word.lstrip("abcother/")))
            for word in text.split()
        ]
        for text in ("a3 b5", now)
    )
    difference = describe_difference(before, after)
    if parts is None:
        assert difference is None
    else:
        assert difference is not None
        assert all(part in difference for part in parts)


def test_mapped_files_with_another_time_of_change_are_named(tmp_path: Path) -> None:
    write_megatron(tmp_path, [[1, 2, 3]], (0, 1))
    np.save(tmp_path / "x.npy", np.arange(9))
    (tmp_path / "r.jsonl").write_text("\n")
    files = tuple(str(path) for path in sorted(tmp_path.iterdir()) if path.suffix != ".idx")
    config = DataConfig(tokens_per_batch=8, sources=(SourceConfig(files=files, format="tokens"),))
    before = list_data_files(config)
    assert describe_changed_times(before, list_data_files(config)) == ""
    for suffix in (".jsonl", ".bin", ".npy"):
        (path,) = tmp_path.glob(f"*{suffix}")
        os.utime(path, ns=(2 * 10**18, 2 * 10**18))
    now = list_data_files(config)
    assert describe_difference(before, now) is None
    text = describe_changed_times(before, now)
    assert ".idx' and 1 other file: the time of change differs" in text
    # A list of an earlier version has no times.
    assert describe_changed_times([DataFile(path=one.path, bytes=one.bytes) for one in before], now) == ""
