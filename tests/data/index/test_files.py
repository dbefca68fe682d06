"""The journal of an index is valid, even after a power failure."""

from pathlib import Path

import pytest

from helpers import synced
from hydraulis.data.index.files import Extent, IndexWriter


def test_data_are_on_the_disk_before_the_journal_and_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Extent(dtype="<u2", masked=False)
    with IndexWriter(tmp_path, start) as writer:
        for name, complete in (("journal.json", False), ("index.json", True)):
            found = synced(monkeypatch, tmp_path / name)
            writer.save(complete=complete)
            data = [(file, False) for file in start.file_sizes()]
            assert found == [*data, (f".{name}.unfinished", False), (tmp_path.name, True)]
            monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*start.file_sizes(), "index.json"])
