"""The run lock, which lets only one training at a time write into a run's folder."""

import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hydraulis.errors import InvalidInputError
from hydraulis.files import lock_file, open_unlinked
from hydraulis.runtime.records.run_directory import LOCK, writing

# Most seconds that a restart waits for the lock of a lost node. An NFS server keeps it for a lease, on Linux
# 90 s by default (`nfsd4_lease` in the kernel's fs/nfsd/nfs4state.c).
LOST_NODE_S = 120.0
_POLL_S = 0.5
# Most seconds that a training waits for those who look at the lock, and the time between two attempts.
_LOOKS_S, _LOOK_S = 0.1, 0.01


class RunLock:
    """Locks a run's folder until the lock is released or the process ends for any reason.

    On a shared disk without locks, the lock has no effect. The server of a shared disk may keep the lock of
    a lost node for a while (see `wait_unlocked`).

    Args:
        directory: The run's folder.

    Raises:
        InvalidInputError: Another training has locked the folder (code `folder_busy`).
        HydraulisError: The folder cannot be written (code `file_unwritable`).
    """

    def __init__(self, directory: Path) -> None:
        with writing(directory / LOCK):
            # The file is not truncated: the error message quotes the other process's entry.
            self._file = open_unlinked(directory / LOCK, "a+b", buffering=0)
            # A failed run closes the file, and so releases the lock, when this object is collected.
            weakref.finalize(self, self._file.close)
            try:
                _lock_after_looks(self._file)
            except BlockingIOError as error:
                with self._file:
                    raise _busy(directory, _owner(self._file)) from error
        with writing(directory / LOCK):
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


def check_unlocked(directory: Path) -> None:
    """Check that no other training has locked a run's folder.

    Raises:
        InvalidInputError: Another training has locked the folder (code `folder_busy`).
    """
    owner = lock_owner(directory)
    if owner:
        raise _busy(directory, owner)


def wait_unlocked(
    directory: Path,
    alive: Callable[[], None],
    limit_s: float = LOST_NODE_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until no other training has locked a run's folder.

    Args:
        directory: The run's folder.
        alive: Function that is called between two looks at the lock, and may end the wait by an exception.
        limit_s: Most seconds to wait.
        clock: Function that returns the time in seconds.

    Raises:
        InvalidInputError: The folder is still locked after the limit (code `folder_busy`).
    """
    end = clock() + limit_s
    while clock() < end and lock_owner(directory):
        alive()
        time.sleep(_POLL_S)
    check_unlocked(directory)


def lock_owner(directory: Path) -> str:
    """Return the process that has locked a run's folder, with its host; empty if none has."""
    try:
        file = open_unlinked(directory / LOCK, "rb")
    except OSError:
        # The folder was never locked, or is unreadable; other checks report an unreadable folder.
        return ""
    with file:
        try:
            # A shared lock, so two simultaneous checks do not mistake each other for a training.
            lock_file(file, fcntl.LOCK_SH)
        except BlockingIOError:
            return _owner(file)
        except OSError:
            # The training that begins next reports it.
            return ""
    return ""


def _lock_after_looks(file: BinaryIO) -> None:
    """Lock a file as `lock_file` does, once no `lock_owner` looks at it; their shared locks are short."""
    end = time.monotonic() + _LOOKS_S
    while True:
        try:
            lock_file(file, fcntl.LOCK_EX)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _owner(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip() or "another process"


def _busy(directory: Path, owner: str) -> InvalidInputError:
    message = (
        f"'{directory}' is being trained by {owner}: wait for it or end it; if that host is gone, remove "
        f"'{directory / LOCK}'; or train without resuming, which starts a new run in its own folder"
    )
    return InvalidInputError(message, code="folder_busy")
