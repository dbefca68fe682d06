"""The folder of copies: names of files, its owner, its room."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import refused
from hydraulis.runtime.ranks.liveness.check import Process
from hydraulis.runtime.recovery.memory_folder import CopyName, MemoryFolder, Owner
from hydraulis.text.values import MIB


@pytest.mark.parametrize("copy", [CopyName(12, 3, 8, 5), CopyName(None, 0, 1, 0), CopyName(10**9, 1, 2, 1)])
def test_a_name_has_all_its_parts(copy: CopyName) -> None:
    assert CopyName.parse(str(copy)) == copy


@pytest.mark.parametrize("change", [".unfinished", "x"])
def test_other_names_are_no_copies(change: str) -> None:
    assert CopyName.parse(f"{CopyName(1, 0, 1, 0)}{change}") is None
    assert CopyName.parse(f".{CopyName(1, 0, 1, 0)}") is None


def test_a_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path, "a")
    assert folder.copies() == []
    for _ in range(2):
        folder.create(Path("run"))
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.file(CopyName(1, 0, 1, 0)).touch()
    assert folder.copies() == [CopyName(1, 0, 1, 0)]
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    base.mkdir()
    elsewhere.mkdir()
    folder = MemoryFolder(base, "a")
    folder.path.symlink_to(elsewhere)
    with refused("file_unwritable", folder.path, "checkpoint.memory_folder"):
        folder.create(Path("run"))
    assert list(elsewhere.iterdir()) == []


def test_an_absent_base_is_refused(tmp_path: Path) -> None:
    with refused("file_unwritable", tmp_path / "absent", "checkpoint.memory_folder"):
        MemoryFolder(tmp_path / "absent", "a").create(Path("run"))


def test_folders_of_ended_launchers_and_of_earlier_starts_are_abandoned(tmp_path: Path) -> None:
    own, living, ended, unknown, earlier, before = (MemoryFolder(tmp_path, name) for name in "abcdfg")
    for folder in (own, living, ended, unknown, earlier, before):
        folder.create(Path("run"))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = Process.own()
    owners = {
        living: here,
        ended: replace(here, pid=process.pid),
        unknown: replace(here, host="another host", pid=process.pid),
        # Its process number is that of a living process since the node was started again.
        before: replace(here, boot="another start of this node"),
    }
    for folder, owner in owners.items():
        (folder.path / "owner.json").write_text(json.dumps(asdict(owner)))
    (tmp_path / f"hydraulis-{os.getuid() + 1}-e").mkdir()
    # The owner of the one that ended does not say its run, as if it was torn.
    assert own.abandoned_starts() == {"f": Path("run").absolute()}
    (ended.path / "owner.json").write_text(json.dumps({"run": "/other", **asdict(owners[ended])}))
    assert own.abandoned_starts() == {"c": Path("/other"), "f": Path("run").absolute()}
    own.remove_abandoned()
    left = {path.name.rpartition("-")[2] for path in tmp_path.iterdir()}
    assert left == {"a", "b", "d", "e"}


def test_the_owner_is_the_run_and_its_launcher(tmp_path: Path) -> None:
    run, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(run)
    folder = MemoryFolder(tmp_path, "a")
    assert folder.owner() is None
    folder.create(link)
    assert folder.owner() == Owner(str(run), Process.launcher())
    file = folder.path / "owner.json"
    whole = file.read_text()
    for damaged in ("", "[1]", "{}", whole[:-1], whole.replace("pid", "PID"), whole.replace("run", "RUN", 1)):
        file.write_text(damaged)
        assert folder.owner() is None, damaged


def test_all_but_the_copies_of_one_step_are_removed(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path, "a")
    folder.create(Path("run"))
    kept = [CopyName(step, shard, 2, holder) for step in (4, None) for shard in (0, 1) for holder in (0, 1)]
    others = [CopyName(3, 0, 2, 0), CopyName(5, 1, 2, 0)]
    for copy in (*kept, *others):
        folder.file(copy).write_bytes(bytes(3))
    # Files that a killed process has not completed.
    for name in (f".{CopyName(4, 0, 2, 0)}.unfinished", ".tmp1a2b3c"):
        (folder.path / name).touch()
    assert folder.num_bytes() == 3 * 10
    folder.remove_other_steps(4)
    left = {path.name for path in folder.path.iterdir()}
    assert left == {"owner.json", *map(str, kept)}
    assert folder.num_bytes() == 3 * 8
    MemoryFolder(tmp_path, "absent").remove_other_steps(4)


def pretend_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_a_folder_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = MemoryFolder(tmp_path, "a")
    folder.create(Path("run"))
    pretend_room(monkeypatch, 8 * MIB)
    folder.require_room(4 * MIB, 8 * MIB)
    pretend_room(monkeypatch, 8 * MIB - 1)
    with refused("file_unwritable", "checkpoint.memory_folder", "7 MiB", "need 8", "set it to ''"):
        folder.require_room(4 * MIB, 8 * MIB)


def test_copies_that_the_first_whole_one_replaces_leave_their_room_to_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, previous, absent = (MemoryFolder(tmp_path, name) for name in "abc")
    for one in (folder, previous):
        one.create(Path("run"))
    # Nobody knows whether the launcher of the previous start has ended.
    (previous.path / "owner.json").unlink()
    previous.file(CopyName(3, 0, 1, 0)).write_bytes(bytes(3 * MIB))
    pretend_room(monkeypatch, 5 * MIB)
    folder.require_room(4 * MIB, 8 * MIB, previous)
    # The first copy has to fit next to the previous one, and the second in its place.
    for first, most, others in ((6, 8, previous), (4, 9, previous), (4, 8, absent)):
        with refused("file_unwritable", "checkpoint.memory_folder", "5 MiB", "remove other files") as caught:
            folder.require_room(first * MIB, most * MIB, others)
        assert "''" not in str(caught.value)
    # A start that is known to be abandoned is replaced too.
    with refused("file_unwritable", "need 8"):
        folder.require_room(4 * MIB, 8 * MIB)
    abandoned = MemoryFolder(tmp_path, "d")
    abandoned.create(Path("other"))
    abandoned.file(CopyName(3, 0, 1, 0)).write_bytes(bytes(3 * MIB))
    folder.require_room(4 * MIB, 8 * MIB)
