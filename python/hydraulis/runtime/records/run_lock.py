"""The run lock, which lets only one training at a time write into a run's folder."""

import fcntl
import os
import socket
import weakref
from pathlib import Path
from typing import BinaryIO

from hydraulis.errors import InvalidInputError
from hydraulis.files import lock_file, open_unlinked
from hydraulis.runtime.records.run_directory import LOCK, writing


class RunLock:
    """Locks a run's folder until the lock is released or the process ends for any reason.

    On a shared disk without locks, the lock has no effect.

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
        try:
            lock_file(self._file, fcntl.LOCK_EX)
        except BlockingIOError as error:
            with self._file:
                raise _busy(directory, self._file) from error
        # A failed run closes the file, and so releases the lock, when this object is collected.
        weakref.finalize(self, self._file.close)
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
    try:
        file = open_unlinked(directory / LOCK, "rb")
    except OSError:
        # The folder was never locked, or is unreadable; other checks report an unreadable folder.
        return
    with file:
        try:
            # A shared lock, so two simultaneous checks do not mistake each other for a training.
            lock_file(file, fcntl.LOCK_SH)
        except BlockingIOError as error:
            raise _busy(directory, file) from error


def _busy(directory: Path, file: BinaryIO) -> InvalidInputError:
    file.seek(0)
    who = file.read().decode(errors="replace").strip() or "another process"
    message = (
        f"'{directory}' is being trained by {who}: wait for it or end it, or train without resuming, which "
        "starts a new run in its own folder"
    )
    return InvalidInputError(message, code="folder_busy")
