"""One training at a time is in a folder, and however it ended the next one may begin."""

import errno
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import refused
from hydraulis.runtime.records import run_lock
from hydraulis.runtime.records.run_lock import LOST_NODE_S, RunLock, check_unlocked, lock_owner, wait_unlocked


def test_a_second_training_is_refused_until_the_first_releases_the_lock(tmp_path: Path) -> None:
    check_unlocked(tmp_path)
    first = RunLock(tmp_path)
    for attempt in (check_unlocked, RunLock):
        with refused("folder_busy", os.getpid(), f"if that host is gone, remove '{tmp_path / 'lock'}'"):
            attempt(tmp_path)
    first.release()
    check_unlocked(tmp_path)
    RunLock(tmp_path).release()


def test_a_look_at_the_lock_refuses_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunLock(tmp_path).release()
    waits: list[float] = []
    with (tmp_path / "lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                look.close()

        monkeypatch.setattr(time, "sleep", wait)
        RunLock(tmp_path).release()
    assert len(waits) == 3
    assert sum(waits) < run_lock._LOOKS_S


KILLED = """\
import pathlib, sys, time
from hydraulis.runtime.records.run_lock import RunLock

lock = RunLock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with refused("folder_busy", process.pid):
            check_unlocked(tmp_path)
        process.send_signal(signal.SIGKILL)
    RunLock(tmp_path).release()


def test_the_lock_of_a_lost_node_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A shared disk keeps the lock of a lost node for a while, as this process does.
    lost, seconds = RunLock(tmp_path), itertools.count()
    monkeypatch.setattr(run_lock, "_POLL_S", 0.0)
    looks: list[str] = []

    def look() -> None:
        looks.append(lock_owner(tmp_path))
        if len(looks) == 90:
            lost.release()

    wait_unlocked(tmp_path, look, clock=lambda: next(seconds))
    assert looks == [f"process {os.getpid()} on {socket.gethostname()}"] * 90
    assert lock_owner(tmp_path) == ""


def test_a_lock_that_stays_is_refused_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, seconds = RunLock(tmp_path), itertools.count()
    monkeypatch.setattr(run_lock, "_POLL_S", 0.0)
    looks: list[None] = []
    with refused("folder_busy", os.getpid(), tmp_path / "lock"):
        wait_unlocked(tmp_path, lambda: looks.append(None), clock=lambda: next(seconds))
    assert len(looks) == LOST_NODE_S - 1
    lock.release()


def test_a_lock_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(outside)
    check_unlocked(tmp_path / "run")
    with refused("file_unwritable", tmp_path / "run" / "lock", "symbolic link"):
        RunLock(tmp_path / "run")
    assert outside.read_text() == "precious"


def test_a_lock_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    check_unlocked(tmp_path)
    with refused("file_unwritable", tmp_path / "lock"):
        RunLock(tmp_path)


def test_another_failure_of_the_lock_is_reported_by_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    (tmp_path / "lock").touch()
    check_unlocked(tmp_path)
    with refused("file_unwritable", tmp_path / "lock", "Input/output error"):
        RunLock(tmp_path)


def test_a_disk_without_locks_refuses_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    locks = [RunLock(tmp_path), RunLock(tmp_path)]
    check_unlocked(tmp_path)
    for lock in locks:
        lock.release()
