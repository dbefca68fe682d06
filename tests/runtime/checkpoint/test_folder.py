"""Which folders are checkpoints, and which go."""

import errno
import fcntl
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest

from helpers import lacks, refused, unsearched
from hydraulis.errors import InvalidInputError
from hydraulis.files import open_unlinked as opened
from hydraulis.runtime.checkpoint import folder as folder_module
from hydraulis.runtime.checkpoint.folder import (
    CheckpointFolder,
    checkpoint_of,
    newest_checkpoint,
    pinned_checkpoint,
    remove,
)
from hydraulis.runtime.checkpoint.manifest import MANIFEST, torn, unread
from hydraulis.runtime.checkpoint.resume import newest_of

FLOCK = fcntl.flock


def make(folder: CheckpointFolder, *steps: int, torn: int | None = None) -> None:
    for step in steps:
        path = folder.begin(step)
        (path / "state.safetensors").write_text("")
        if step != torn:
            (path / MANIFEST).write_text("")


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder.of_run(tmp_path / "run")


def test_a_run_without_checkpoints_has_no_newest_one(folder: CheckpointFolder) -> None:
    assert folder.complete() == []
    assert folder.newest() is None
    folder.rotate(1)
    assert not folder.path.exists()


def test_only_a_folder_with_a_manifest_is_a_checkpoint(folder: CheckpointFolder) -> None:
    make(folder, 5, 10, 15, torn=15)
    (folder.path / "notes").mkdir()
    assert folder.complete() == [folder.step(5), folder.step(10)]
    assert folder.newest() == folder.step(10)


def test_checkpoints_are_ordered_by_their_steps(folder: CheckpointFolder) -> None:
    make(folder, 99_999_999, 100_000_000)
    assert folder.newest() == folder.step(100_000_000)


def test_a_path_that_is_no_checkpoint_is_refused_with_advice(folder: CheckpointFolder) -> None:
    run = folder.path.parent

    def refused() -> str:
        with pytest.raises(InvalidInputError) as refusal:
            newest_checkpoint(run)
        assert refusal.value.code == "checkpoint_missing"
        return str(refusal.value)

    assert lacks(refused(), run) == []
    run.mkdir()
    assert lacks(refused(), run) == []
    assert "step-" not in refused()
    make(folder, 5, torn=5)
    assert lacks(refused(), run, "step-00000005", "manifest.json") == []
    for step in (10, 15):
        make(folder, step, torn=step)
    assert lacks(refused(), "step-00000015", "2 others", "manifest.json") == []
    make(folder, 10)
    assert newest_checkpoint(run) == folder.step(10)


def test_a_run_without_the_checkpoint_to_export_names_the_present_ones(folder: CheckpointFolder) -> None:
    def refused(source: Path) -> str:
        with pytest.raises(InvalidInputError) as refusal:
            checkpoint_of(source)
        assert refusal.value.code == "checkpoint_missing"
        return str(refusal.value)

    run = folder.path.parent
    run.mkdir()
    assert lacks(refused(run), run) == []
    assert lacks(refused(folder.step(3)), folder.step(3)) == []
    make(folder, 5, 10, 15, torn=15)
    for absent in (3, 15):
        message = refused(folder.step(absent))
        assert lacks(message, folder.step(absent), f"{folder.path}: step-00000005, step-00000010") == []
    make(folder, 20, 25, 30, 35)
    assert refused(folder.step(3)).endswith(", step-00000030, step-00000035 (and 1 other before)")
    assert checkpoint_of(folder.step(20)) == folder.step(20)
    assert checkpoint_of(run) == folder.step(35)


@pytest.mark.parametrize("locked", ["run", "checkpoints", "step-00000010"])
def test_folders_that_may_not_be_read_are_named(folder: CheckpointFolder, locked: str) -> None:
    make(folder, 5, 10)
    run = folder.path.parent
    place = {"run": run, "checkpoints": folder.path, "step-00000010": folder.step(10)}[locked]
    with unsearched(place):
        for look in (
            folder.complete,
            folder.newest,
            folder.unfinished,
            lambda: checkpoint_of(run),
            lambda: checkpoint_of(folder.step(10)),
            lambda: newest_checkpoint(run),
            lambda: newest_of(str(run), "elsewhere"),
            lambda: newest_of("latest", str(run)),
        ):
            with refused("file_unreadable", place, "Permission denied", "permissions"):
                look()
    assert newest_checkpoint(run) == folder.step(10)


def test_rotation_keeps_the_newest_and_removes_incomplete_checkpoints(folder: CheckpointFolder) -> None:
    make(folder, 5, 10, 15, 20, torn=15)
    (folder.path / "notes").mkdir()
    folder.rotate(0)
    assert names(folder) == ["notes", "step-00000005", "step-00000010", "step-00000020"]
    folder.rotate(2)
    assert names(folder) == ["notes", "step-00000010", "step-00000020"]
    folder.rotate(7)
    assert len(folder.complete()) == 2


def test_a_checkpoint_is_begun_in_an_empty_folder(folder: CheckpointFolder) -> None:
    make(folder, 5)
    assert list(folder.begin(5).iterdir()) == []
    assert folder.newest() is None


def test_a_removal_that_is_cut_short_leaves_no_checkpoint(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, 5)

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove(folder.step(5))
    assert folder.complete() == []


def test_removal_of_a_linked_step_folder_removes_the_link_alone(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    elsewhere = CheckpointFolder(tmp_path / "elsewhere")
    make(elsewhere, 2, 3)
    make(folder, 5)
    for step in (2, 3):
        folder.step(step).symlink_to(elsewhere.step(step))
    folder.rotate(2)
    assert names(folder) == ["step-00000003", "step-00000005"]
    # Begun again, the step gets a folder of its own.
    assert list(folder.begin(3).iterdir()) == []
    assert not folder.step(3).is_symlink()
    assert elsewhere.complete() == [elsewhere.step(2), elsewhere.step(3)]


def test_a_file_with_the_name_of_a_step_makes_room_for_it(folder: CheckpointFolder) -> None:
    make(folder, 5)
    folder.step(7).write_text("")
    assert list(folder.begin(7).iterdir()) == []


def test_a_checkpoint_that_is_read_stays_until_a_later_rotation(folder: CheckpointFolder) -> None:
    make(folder, 5)
    with pinned_checkpoint(folder.path.parent) as first, pinned_checkpoint(folder.step(5)) as again:
        make(folder, 10, 15)
        folder.rotate(1)
        assert first == again == folder.step(5)
        assert folder.complete() == [folder.step(5), folder.step(15)]
    make(folder, 20)
    folder.rotate(1)
    assert names(folder) == ["step-00000020"]


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse locks as NFS does, and the removal of a folder with an open file."""
    flock, rmtree = fcntl.flock, shutil.rmtree
    files: list[BinaryIO] = []

    def asked(file: BinaryIO, kind: int) -> None:
        if not (file.writable() if kind & fcntl.LOCK_EX else file.readable()):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, kind)

    def recorded(path: Path, mode: str) -> BinaryIO:
        files.append(opened(path, mode))
        return files[-1]

    def removed(path: Path) -> None:
        if any(not file.closed and Path(str(file.name)).parent == path for file in files):
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmtree(path)

    monkeypatch.setattr(fcntl, "flock", asked)
    monkeypatch.setattr(shutil, "rmtree", removed)
    monkeypatch.setattr(folder_module, "open_unlinked", recorded)


def check_it_goes_once_it_is_not_read(folder: CheckpointFolder) -> None:
    make(folder, 5)
    with pinned_checkpoint(folder.step(5)):
        make(folder, 10)
        folder.rotate(1)
        assert folder.complete() == [folder.step(5), folder.step(10)]
    folder.rotate(1)
    assert names(folder) == ["step-00000010"]


@pytest.mark.usefixtures("nfs")
def test_a_checkpoint_on_nfs_stays_while_it_is_read_and_goes_later(folder: CheckpointFolder) -> None:
    check_it_goes_once_it_is_not_read(folder)


@pytest.fixture
def protected(nfs: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Refuse writing into a manifest, as to a user who may only read it."""
    recorded = vars(folder_module)["open_unlinked"]

    def refused(path: Path, mode: str) -> BinaryIO:
        if mode != "rb":
            raise PermissionError(errno.EACCES, "Permission denied")
        file: BinaryIO = recorded(path, mode)
        return file

    monkeypatch.setattr(folder_module, "open_unlinked", refused)


@pytest.mark.usefixtures("protected")
def test_a_protected_manifest_on_nfs_keeps_its_checkpoint_and_no_other(folder: CheckpointFolder) -> None:
    make(folder, 5, 10, torn=5)
    with pinned_checkpoint(folder.step(10)):
        make(folder, 15)
        folder.rotate(1)
    assert names(folder) == ["step-00000010", "step-00000015"]


@pytest.mark.usefixtures("protected")
def test_a_protected_manifest_elsewhere_goes_once_it_is_not_read(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", FLOCK)
    check_it_goes_once_it_is_not_read(folder)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_asked_for_stays(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> BinaryIO:
        raise OSError(number, "no")

    make(folder, 5, 10)
    monkeypatch.setattr(folder_module, "open_unlinked", refused)
    folder.rotate(1)
    assert len(folder.complete()) == 2


def test_a_checkpoint_that_is_removed_before_it_is_read_gives_way_to_the_newest(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, 5, 10)

    def removed_meanwhile(path: Path, mode: str) -> BinaryIO:
        monkeypatch.setattr(folder_module, "open_unlinked", opened)
        file = opened(path, mode)
        make(folder, 15)
        folder.rotate(1)
        return file

    monkeypatch.setattr(folder_module, "open_unlinked", removed_meanwhile)
    with pinned_checkpoint(folder.path.parent) as checkpoint:
        assert checkpoint == folder.step(15)


def test_a_checkpoint_removed_from_a_disk_without_locks_is_reported_as_missing(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    make(folder, 5)
    with refused("checkpoint_missing", folder.step(5)):  # noqa: SIM117
        with pinned_checkpoint(folder.step(5)) as checkpoint:
            make(folder, 10)
            folder.rotate(1)
            raise torn(str(checkpoint / MANIFEST), "No such file or directory")
    # NFS calls a file that was removed while it was open stale.
    with refused("checkpoint_missing", folder.step(10)), pinned_checkpoint(folder.step(10)) as checkpoint:
        make(folder, 15)
        folder.rotate(1)
        raise unread(checkpoint / MANIFEST, OSError(errno.ESTALE, "Stale file handle"))
    make(folder, 10)
    with refused("checkpoint_damaged", "rm -r"), pinned_checkpoint(folder.step(10)) as checkpoint:
        raise torn(str(checkpoint / MANIFEST), "it was changed")


def test_a_run_to_resume_is_named_as_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a resumed run lists is then written as what a new one does.
    (CheckpointFolder.of_run(tmp_path / "runs" / "one-2").begin(7) / MANIFEST).touch()
    monkeypatch.chdir(tmp_path)
    newest = Path("runs/one-2/checkpoints/step-00000007")
    assert newest_of("latest", "runs/one") == newest_of("runs/one-2", "elsewhere") == newest
    assert newest_of(str(tmp_path / "runs/one-2"), "elsewhere") == tmp_path / newest
    monkeypatch.chdir(tmp_path / "runs/one-2")
    found = newest_of(".", "elsewhere")
    assert found is not None
    assert found.parents[1] == Path()
