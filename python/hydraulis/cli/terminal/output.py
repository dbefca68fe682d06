"""Output that may lose whoever it was for: a reader that goes away, or a terminal that is closed."""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

# How a write fails that nobody is there to read: a closed pipe, a terminal that hung up.
_NOBODY = (errno.EPIPE, errno.EIO)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Let standard output and standard error go nowhere from when they cannot be written any more.

    For what has other work than to print: a run is in its files, and goes on.
    """
    before = sys.stdout, sys.stderr
    lasting = tuple(_Lasting(stream) for stream in before)
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in lasting)
    try:
        yield
    finally:
        # Here and not at exit, where it would be an error.
        for stream in lasting:
            stream.flush()
        sys.stdout, sys.stderr = before


def open_missing() -> None:
    """Let standard streams that the process was started without, as some daemons are, go nowhere.

    What is opened first would else take their numbers, and be written into by whoever writes to those.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def discard(stream: TextIO) -> None:
    """Let what a stream still holds, and what else is written there, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Lasting:
    """A stream whose writes succeed, also when nobody reads them any more; otherwise the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, to nowhere if nobody is there."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._discard_if_nobody_reads(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines, to nowhere if nobody is there."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is held back, to nowhere if nobody is there."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard_if_nobody_reads(error)

    def _discard_if_nobody_reads(self, error: OSError) -> None:
        if error.errno not in _NOBODY:
            raise error
        # What replaces a standard stream may have no file of its own.
        with suppress(OSError):
            discard(self._stream)
            self._stream.flush()
