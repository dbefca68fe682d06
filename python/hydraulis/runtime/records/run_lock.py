"""That one training at a time writes into the folder of a run."""

import fcntl
import os
import socket
import weakref
from pathlib import Path
from typing import BinaryIO

from hydraulis.errors import InvalidInputError
from hydraulis.runtime.records.run_directory import LOCK, writing


class RunClaim:
    """Keeps other trainings out of a folder until it is released, or its process ended, however that ended.

    Where a shared disk has no locks, it keeps nobody out.

    Args:
        directory: of the run.

    Raises:
        InvalidInputError: another training has claimed it (code `folder_busy`).
        HydraulisError: the folder cannot be written (code `file_unwritable`).
    """

    def __init__(self, directory: Path) -> None:
        with writing(directory / LOCK):
            # Not truncated: what another one wrote is told.
            self._file = (directory / LOCK).open("a+b", buffering=0)
        try:
            _lock(self._file)
        except BlockingIOError as error:
            with self._file:
                raise _busy(directory, self._file) from error
        # A run that failed releases it with everything else.
        weakref.finalize(self, self._file.close)
        with writing(directory / LOCK):
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Let others in."""
        self._file.close()


def check_unclaimed(directory: Path) -> None:
    """Refuse to go on in a folder in which another training is at work.

    Raises:
        InvalidInputError: one is (code `folder_busy`).
    """
    try:
        file = (directory / LOCK).open("rb")
    except OSError:
        # None has claimed it, or it cannot be read, of which others tell more.
        return
    with file:
        try:
            # Shared, so that two that look at the same time do not take each other for a training.
            _lock(file, fcntl.LOCK_SH)
        except BlockingIOError as error:
            raise _busy(directory, file) from error


def _lock(file: BinaryIO, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # Some shared disks have no locks.
        return


def _busy(directory: Path, file: BinaryIO) -> InvalidInputError:
    file.seek(0)
    who = file.read().decode(errors="replace").strip() or "another process"
    message = (
        f"'{directory}' is being trained by {who}: wait for it or end it, or train without resuming, which "
        "starts a new run in its own folder"
    )
    return InvalidInputError(message, code="folder_busy")
