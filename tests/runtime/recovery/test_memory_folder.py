"""The folder of copies: names of files, its owner, its room."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from helpers import refused
from hydraulis.runtime.ranks.liveness.check import Process
from hydraulis.runtime.recovery.memory_folder import CopyName, MemoryFolder


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
    own, living, ended, unknown, earlier = (MemoryFolder(tmp_path, name) for name in "abcdf")
    for folder in (own, living, ended, unknown, earlier):
        folder.create(Path("run"))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = Process.own()
    owners = {
        living: here,
        ended: Process(here.host, process.pid, here.namespace),
        unknown: Process("another host", process.pid, here.namespace),
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


def test_a_folder_without_room_is_refused(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path, "a")
    folder.create(Path("run"))
    folder.require_room(1)
    with refused("file_unwritable", "checkpoint.memory_folder", f"{1 << 40:,}"):
        folder.require_room(1 << 60)
