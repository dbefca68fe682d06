"""Exit codes, the line that reports an error, and the end of a rank's process."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from hydraulis.errors import LOST_RANK, HydraulisError

EXIT_INTERNAL = 1
EXIT_REFUSED = 2
EXIT_LOST_RANK = 3
EXIT_UNKNOWN = 255  # of a forked rank whose server ended first, as multiprocessing reports it
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


def refuse(program: str, error: HydraulisError) -> int:
    """Write the error to standard error on one line, and return its exit code."""
    sys.stderr.write(f"{program}: error [{error.code}]: {one_line(error)}\n")
    return exit_code(error)


def exit_code(error: HydraulisError) -> int:
    """Return the exit code of an error; that of a lost rank is distinct, since a restart may succeed."""
    return EXIT_LOST_RANK if error.code == LOST_RANK else EXIT_REFUSED


def one_line(error: HydraulisError) -> str:
    """Return the error's message without line breaks."""
    return " ".join(str(error).split("\n"))


def leave(code: int) -> NoReturn:
    """End a rank's process as the interpreter does, but without finalizing it.

    gloo's threads release exchanged tensors late, and need the interpreter for it. During finalization such a
    thread is ended inside a destructor, which aborts the process: 1 in 20 ranks that had done all their work
    exited with an error (4 ranks on 2 busy cores, torch 2.13). multiprocessing ends its children in the same
    way.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
