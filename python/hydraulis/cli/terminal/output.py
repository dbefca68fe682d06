"""Standard streams that are missing, closed, or lose their reader or terminal during the run."""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

# Errors of a write that has no reader: a closed pipe, a terminal that hung up.
_NO_READER = (errno.EPIPE, errno.EIO)


@contextmanager
def tolerating_lost_output() -> Iterator[None]:
    """Discard standard output and standard error from the time they lose their reader.

    Training goes on without its output: the files of the run have everything.
    """
    before = sys.stdout, sys.stderr
    tolerant = tuple(_Tolerant(stream) for stream in before)
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in tolerant)
    try:
        yield
    finally:
        # The interpreter's own flush at exit would raise.
        for stream in tolerant:
            stream.flush()
        sys.stdout, sys.stderr = before


def open_missing() -> None:
    """Open /dev/null in place of missing standard streams, with which some daemons start a process.

    The next opened files would take the streams' numbers otherwise, and get output meant for those.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, its buffered text included."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _Tolerant:
    """A stream whose writes succeed after it lost its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or discard it."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._discard_without_reader(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines, or discard them."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write the buffered text, or discard it."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard_without_reader(error)

    def _discard_without_reader(self, error: OSError) -> None:
        if error.errno not in _NO_READER:
            raise error
        # A replaced standard stream may have no file.
        with suppress(OSError):
            discard(self._stream)
            self._stream.flush()
