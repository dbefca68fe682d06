"""The lock of an index: one process builds it, and other processes wait until it is complete."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hydraulis.errors import HydraulisError
from hydraulis.files import is_at, lock_file, open_unlinked

_POLL_S = 0.2
# Time without a written byte after which the other process is taken for stuck.
_STALL_S = 600.0


@contextmanager
def build_lock(folder: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Make the folder of an index and lock it; the lock ends with the process.

    On a disk without locks the lock has no effect, so two commands that build one index at once damage it.

    Args:
        folder: Folder of the index.
        waiting: Callback, called several times a second while another process has the lock.

    Raises:
        HydraulisError: Another process has the lock and writes nothing for 10 minutes (code `folder_busy`).
        OSError: The folder cannot be written.
    """
    path = folder / "lock"
    is_locked = False
    while not is_locked:
        with _opened(path) as file:
            _wait(file, folder, waiting)
            # A process that refuses the data removes the folder, and the lock with it.
            is_locked = is_at(file, path)
            if is_locked:
                yield


def _opened(path: Path) -> BinaryIO:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return open_unlinked(path, "wb")


def _wait(file: BinaryIO, folder: Path, waiting: Callable[[], object]) -> None:
    """Lock a file, once the other process has unlocked it."""
    written, since_s = -1, time.monotonic()
    while True:
        try:
            lock_file(file, fcntl.LOCK_EX)
        except BlockingIOError as error:
            if (now := _num_bytes(folder)) != written:
                written, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > _STALL_S:
                message = (
                    f"another process builds index '{folder}' and has written nothing for {_STALL_S:.0f} s: "
                    "end it, or set data.index_directory"
                )
                raise HydraulisError(message, code="folder_busy") from error
        else:
            return
        waiting()
        time.sleep(_POLL_S)


def _num_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except FileNotFoundError:
        return 0
