"""Files are compared without reading them."""

from pathlib import Path

import pytest

from helpers import refused
from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.data.sources.data_files import DataFile, describe_difference, list_data_files


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
