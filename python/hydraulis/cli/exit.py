"""Exit codes, and the one line in which an error is reported."""

import sys

from hydraulis.errors import HydraulisError

EXIT_INTERNAL = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


def report(program: str, error: HydraulisError) -> int:
    """Write the error to stderr, on one line; give the exit code."""
    sys.stderr.write(f"{program}: error [{error.code}]: {one_line(error)}\n")
    return EXIT_REFUSED


def one_line(error: HydraulisError) -> str:
    """Give what an error says without its line breaks."""
    return " ".join(str(error).split("\n"))
