"""What the ranks of test_restarted_run.py do."""

import os
import signal
import threading
from pathlib import Path

import torch.distributed as dist

from hydraulis.runtime.ranks import rank_zero
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.ranks.torchrun import RESTART_COUNT
from hydraulis.runtime.records.run_lock import RunLock
from hydraulis.train.restarted_run import is_restarted, wait_for_lock
from train.events import RecordedEvents


def restarts() -> list[bool]:
    """Ask on a first start, after a restart on the node of rank 1, and after one on both nodes."""
    answers = [is_restarted()]
    for counts in (("0", "1"), ("2", "1")):
        os.environ[RESTART_COUNT] = counts[dist.get_rank()]
        answers.append(is_restarted())
    return answers


def wait_for_locks(run: Path) -> list[tuple[bool, list[str]]]:
    """Meet a lock at a first start, one that is released, and one that stays until rank 1 is terminated."""
    setattr(rank_zero, "_HEARTBEAT_S", 0.0)  # noqa: B010
    is_owner = dist.get_rank() == 0
    lock = RunLock(run) if is_owner else None
    with StopRequest() as stop:
        waits = [_wait(run, stop)]
        os.environ[RESTART_COUNT] = "1"
        release = threading.Timer(0.3, lock.release) if lock else None
        if release:
            release.start()
        waits.append(_wait(run, stop))
        if release:
            release.join()
        lock = RunLock(run) if is_owner else None
        dist.barrier()
        ask = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        if not is_owner:
            ask.start()
        waits.append(_wait(run, stop))
    if lock:
        lock.release()
    return waits


def _wait(run: Path, stop: StopRequest) -> tuple[bool, list[str]]:
    """Return whether the run goes on, and the messages."""
    events = RecordedEvents()
    return wait_for_lock(run, stop, events), events.messages
