"""The starts whose copies continue a run."""

from pathlib import Path

import pytest

from hydraulis.runtime.ranks import host
from hydraulis.runtime.records.run_directory import MEMORY
from hydraulis.runtime.recovery import run_start
from hydraulis.runtime.recovery.run_start import RunStart, forget_copies, named_starts


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("from_rank_zero", "on_rank_zero", "on_every_rank"):
        monkeypatch.setattr(run_start, name, lambda make: make())
    monkeypatch.setattr(host, "barrier", lambda: None)


def test_a_start_from_copies_leaves_them_until_its_own_are_whole(tmp_path: Path) -> None:
    first = RunStart.begin(tmp_path, tmp_path, None)
    first.has_whole_copy()
    second = RunStart.begin(tmp_path, tmp_path, first.folder)
    third = RunStart.begin(tmp_path, tmp_path, first.folder)
    starts = [start.folder for start in (third, second, first)]
    assert named_starts(tmp_path) == [folder.start for folder in starts]
    assert all(folder.path.is_dir() for folder in starts)
    third.has_whole_copy()
    assert named_starts(tmp_path) == [third.folder.start]
    assert [folder.path.is_dir() for folder in starts] == [True, False, False]
    third.end()
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_ends_before_its_first_copy_leaves_no_files(tmp_path: Path) -> None:
    first = RunStart.begin(tmp_path, tmp_path, None)
    RunStart.begin(tmp_path, tmp_path, first.folder).end()
    assert list(tmp_path.iterdir()) == []


def test_a_start_from_other_files_ends_the_history_of_earlier_copies(tmp_path: Path) -> None:
    RunStart.begin(tmp_path, tmp_path, None).has_whole_copy()
    second = RunStart.begin(tmp_path, tmp_path, None)
    assert named_starts(tmp_path) == [second.folder.start]
    forget_copies(tmp_path)
    assert named_starts(tmp_path) == []


def test_a_start_names_the_other_runs_whose_copies_it_will_remove(tmp_path: Path) -> None:
    base, one, other, link = (tmp_path / name for name in ("base", "one", "other", "link"))
    for folder in (base, one, other):
        folder.mkdir()
    link.symlink_to(one)
    first = RunStart.begin(one, base, None)
    first.has_whole_copy()
    assert first.other_runs() == []
    # This process has the same launcher as the first start, which is over therefore.
    assert RunStart.begin(other, base, None).other_runs() == [one]
    # The same run by another path continues.
    assert RunStart.begin(link, base, first.folder).other_runs() == [other]
    forget_copies(one)
    forget_copies(other)
    assert RunStart.begin(tmp_path, base, None).other_runs() == []


@pytest.mark.parametrize("content", [b"", b"../elsewhere\n", b"\xff\n"])
def test_a_malformed_file_names_no_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MEMORY).write_bytes(content)
    assert named_starts(tmp_path) == []
