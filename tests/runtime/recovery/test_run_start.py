"""The starts whose copies continue a run."""

from pathlib import Path

import pytest

from hydraulis.runtime.ranks import host
from hydraulis.runtime.records.run_directory import MEMORY
from hydraulis.runtime.recovery import run_start
from hydraulis.runtime.recovery.memory_folder import CopyName, MemoryFolder
from hydraulis.runtime.recovery.run_start import RunStart, forget_copies, named_starts


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("from_rank_zero", "on_rank_zero", "on_every_rank"):
        monkeypatch.setattr(run_start, name, lambda make: make())
    monkeypatch.setattr(host, "barrier", lambda: None)
    monkeypatch.setattr(host, "all_gather_objects", lambda value: [value])


def test_a_start_from_copies_leaves_them_until_its_own_are_whole(tmp_path: Path) -> None:
    first = RunStart.begin(tmp_path, tmp_path, None)
    first.has_whole_copy()
    second = RunStart.begin(tmp_path, tmp_path, first.folder)
    third = RunStart.begin(tmp_path, tmp_path, first.folder)
    starts = [start.folder for start in (third, second, first)]
    # The second start had no whole copy.
    assert named_starts(tmp_path) == [third.folder.start, first.folder.start]
    assert all(folder.path.is_dir() for folder in starts)
    third.has_whole_copy()
    assert named_starts(tmp_path) == [third.folder.start]
    assert [folder.path.is_dir() for folder in starts] == [True, False, False]
    third.end()
    assert list(tmp_path.iterdir()) == []


def write_copies(folder: MemoryFolder, *steps: int) -> None:
    """Write the copies of some steps and of the frozen parameters."""
    for step in (*steps, None):
        folder.file(CopyName(step, 0, 1, 0)).touch()


def steps_in(folder: MemoryFolder) -> set[int | None]:
    return {copy.step for copy in folder.copies()}


def test_a_start_from_copies_keeps_those_of_its_step_until_its_own_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, base, other = (tmp_path / name for name in ("run", "base", "other"))
    for folder in (run, base, other):
        folder.mkdir()
    unrelated = RunStart.begin(other, base, None)
    first = RunStart.begin(run, base, None)
    second = RunStart.begin(run, base, first.folder)
    for start in (unrelated, first, second):
        write_copies(start.folder, 4, 5)
    # A start that is lost before its first copy is whole leaves the chosen step to the next one.
    for _ in range(2):
        start = RunStart.begin(run, base, first.folder)
        start.remove_unused(4, 0)
        assert named_starts(run) == [start.folder.start, first.folder.start]
        assert steps_in(first.folder) == {4, None}
        write_copies(start.folder, 5)
    assert {path.name for path in base.iterdir()} == {
        one.path.name for one in (unrelated.folder, first.folder, start.folder)
    }
    assert steps_in(unrelated.folder) == {4, 5, None}
    left: list[list[Path]] = []
    monkeypatch.setattr(host, "barrier", lambda: left.append(list(base.iterdir())))
    start.has_whole_copy()
    # A second copy, which follows the barrier, has the room of all earlier ones.
    assert left == [[start.folder.path]]
    assert steps_in(start.folder) == {5, None}


@pytest.mark.parametrize(("first", "kept"), [(0, {4, 5, None}), (1 << 60, {5, None})])
def test_an_older_step_stays_where_it_alone_has_twins_and_there_is_room(
    tmp_path: Path, first: int, kept: set[int | None]
) -> None:
    # Both shards of step 5 are there, and no twin: a rank was lost while these were written.
    previous = RunStart.begin(tmp_path, tmp_path, None).folder
    twinned = [(4, shard, holder) for shard in range(2) for holder in range(2)]
    for step, shard, holder in (*twinned, (5, 0, 0), (5, 1, 1), (None, 0, 0)):
        previous.file(CopyName(step, shard, 2, holder)).touch()
    start = RunStart.begin(tmp_path, tmp_path, previous)
    start.remove_unused(5, first)
    assert steps_in(previous) == kept
    # A step that is not whole is no reason, however many copies it has; of equally many copies the older go.
    for holder in range(5):
        previous.file(CopyName(6, 0, 2, holder)).touch()
    for shard, holder in ((0, 1), (1, 0)):
        previous.file(CopyName(5, shard, 2, holder)).touch()
    start.remove_unused(5, first)
    assert steps_in(previous) == {5, None}


def test_a_start_from_other_files_removes_the_runs_own_copies_at_once(tmp_path: Path) -> None:
    run, base, other = (tmp_path / name for name in ("run", "base", "other"))
    for folder in (run, base, other):
        folder.mkdir()
    starts = [RunStart.begin(one, base, None) for one in (other, run, run)]
    write_copies(starts[1].folder, 4)
    starts[2].remove_unused(2, 0)
    assert {path.name for path in base.iterdir()} == {starts[n].folder.path.name for n in (0, 2)}


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
