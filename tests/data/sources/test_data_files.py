"""Files are compared by what tells them apart without reading them."""

from pathlib import Path

import pytest

from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.data.sources.data_files import DataFile, describe_difference, list_data_files
from hydraulis.errors import InvalidInputError


def test_they_are_those_of_all_sources_in_order(tmp_path: Path) -> None:
    for name, size in (("b", 3), ("a", 5), ("c", 7)):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n" * size)
    sources = tuple(SourceConfig(files=(str(tmp_path / name),)) for name in ("b.jsonl", "[ac].jsonl"))
    found = list_data_files(DataConfig(tokens_per_batch=8, sources=sources))
    assert [(Path(file.path).stem, file.bytes) for file in found] == [("b", 3), ("a", 5), ("c", 7)]
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(InvalidInputError, match=r"no file or folder matches '.*b\.jsonl'"):
        list_data_files(DataConfig(tokens_per_batch=8, sources=sources))


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ("a3 b5", None),
        # Moved, or renamed: what is in them counts.
        ("other/a3 c5", None),
        ("a3 b1200", "file 'b' has 1,200 bytes and had 5"),
        ("a3", "file 'b' is no part of them any more"),
        ("a3 c6", "file 'b' is no part of them any more"),
        ("a3 b5 c1", "file 'c' is a new part of them"),
        ("b5 a3", "their files come in another order"),
    ],
)
def test_what_differs_is_named(now: str, says: str | None) -> None:
    before, after = (
        [
            DataFile(path=word.rstrip("0123456789"), bytes=int(word.lstrip("abcother/")))
            for word in text.split()
        ]
        for text in ("a3 b5", now)
    )
    assert describe_difference(before, after) == says
