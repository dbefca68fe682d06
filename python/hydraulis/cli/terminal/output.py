"""Standard streams that are missing, closed, or lose their reader, terminal or disk during the run."""

import errno
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from hydraulis.errors import InvalidInputError

# Errors of a write that has no reader: a closed pipe, a terminal that hung up.
_NO_READER = (errno.EPIPE, errno.EIO)
# Errors of a write for which the disk has no room.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of a write that the disk, or a missing stream, refuses.
_UNWRITABLE = (*_NO_ROOM, errno.EIO, errno.EBADF)
_LOST = (
    "hydraulis: standard output cannot be written: {why}; the run continues without it, and its files have "
    "everything\n"
)


@contextmanager
def tolerating_lost_output(*, is_result: bool = False) -> Iterator[None]:
    """Discard standard output and standard error from the time they lose their reader or their room.

    Training goes on without its output: the files of the run have everything. A line on standard error tells
    that standard output had no room.

    Args:
        is_result: Whether standard output gets only the result of the command, so that missing room for it
            stays an error.
    """
    before = sys.stdout, sys.stderr
    tolerant = (
        _Tolerant(sys.stdout, _NO_READER if is_result else _NO_READER + _NO_ROOM),
        _Tolerant(sys.stderr),
    )
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in tolerant)
    try:
        yield
    finally:
        try:
            # The interpreter's own flush at exit would raise.
            for stream in tolerant:
                stream.flush()
        finally:
            sys.stdout, sys.stderr = before


def prepare_streams() -> None:
    """Open missing standard streams, escape what an encoding lacks, and discard lost standard error.

    Standard output writes characters that its encoding lacks escaped, as standard error does. An error of
    standard error would replace the result of the command.
    """
    open_missing()
    # Under the C locale it writes the bytes of a path as they are, which stays so.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = cast("TextIO", _Tolerant(sys.stderr))


def open_missing() -> None:
    """Open /dev/null in place of missing standard streams, with which some daemons start a process.

    The next opened files would take the streams' numbers otherwise, and get output meant for those.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def refusal_of_output(error: OSError) -> InvalidInputError:
    """Return the refusal of a result that standard output cannot take (code `file_unwritable`).

    Args:
        error: An error that no file's own code has handled.

    Raises:
        OSError: The error is not about standard output.
    """
    # Errors of other files have a code or a file name.
    if error.filename is not None or error.errno not in _UNWRITABLE:
        raise error
    why = error.strerror or error
    message = f"standard output cannot be written: {why}; make room, or redirect it"
    return InvalidInputError(message, code="file_unwritable")


def discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, its buffered text included."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _Tolerant:
    """A stream whose writes succeed after it lost its reader or its room.

    Args:
        stream: The stream.
        tolerated: For standard output, the numbers of the errors after which its text is discarded; None for
            standard error, whose text is discarded after any error.
    """

    def __init__(self, stream: TextIO, tolerated: Sequence[int] | None = None) -> None:
        self._stream = stream
        self._tolerated = tolerated
        self._is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or discard it."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._discard(error)
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
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        if self._tolerated is not None and error.errno not in self._tolerated:
            raise error
        is_first, self._is_lost = not self._is_lost, True
        # A replaced standard stream may have no file.
        with suppress(OSError):
            discard(self._stream)
            self._stream.flush()
        if is_first and self._tolerated is not None and error.errno in _NO_ROOM:
            sys.stderr.write(_LOST.format(why=error.strerror or error))
            sys.stderr.flush()
