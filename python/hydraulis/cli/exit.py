"""Exit codes, and the one line in which an error is reported."""

import sys

from hydraulis.errors import HydraulisError

# The code of an error that a rank raises because another one is gone.
LOST_RANK = "lost_rank"

EXIT_INTERNAL = 1
EXIT_REFUSED = 2
EXIT_LOST_RANK = 3
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


def report(program: str, error: HydraulisError) -> int:
    """Write the error to stderr, on one line; give the exit code."""
    sys.stderr.write(f"{program}: error [{error.code}]: {one_line(error)}\n")
    return exit_code(error)


def exit_code(error: HydraulisError) -> int:
    """Give the exit code of an error: one that starting again may mend has its own."""
    return EXIT_LOST_RANK if error.code == LOST_RANK else EXIT_REFUSED


def one_line(error: HydraulisError) -> str:
    """Give what an error says without its line breaks."""
    return " ".join(str(error).split("\n"))
