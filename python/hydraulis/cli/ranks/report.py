"""Error reports of a process that is one of several ranks, and its end with the process that started it."""

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from hydraulis.cli.exit import EXIT_LOST_RANK, EXIT_REFUSED, exit_code, one_line, refuse
from hydraulis.errors import LOST_RANK, HydraulisError
from hydraulis.files import replace_file

# Environment variables of a rank that `run_local_ranks` started: the process id of its parent, and the number
# of the open file in which the rank leaves its error, for the parent to print.
PARENT = "HYDRAULIS_RANKS_PARENT"
ERROR_FILE = "HYDRAULIS_ERROR_FILE"
# Most time between the starts of two ranks.
PATIENCE_S = 60.0
# Environment variable with the file from which torchrun reads the error of a rank, to print it last.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_SHOW_CURSOR = "\x1b[?25h"


def is_rank() -> bool:
    """Whether this process was started as a rank, by torchrun or by another `hydraulis`."""
    return "RANK" in os.environ


def report_as_rank(program: str, error: HydraulisError, variable: str = "RANK") -> int:
    """Report an error that all ranks share: one of them prints it, and each passes it to its parent.

    Args:
        program: Name of the program, for the line that is printed.
        error: The same error on every rank, or `lost_rank` on all remaining ones.
        variable: Environment variable that is 0 on the printing rank: `RANK` for one line in the whole job,
            `LOCAL_RANK` for one on each node.

    Returns:
        The exit code.
    """
    printed = _printed_error(error, variable)
    if PARENT in os.environ:
        _pass_to_parent(printed, error)
    elif printed is not None:
        refuse(program, printed)
    _pass_to_torchrun(printed or error)
    return exit_code(error)


def end_as_lost(program: str, error: HydraulisError | None) -> NoReturn:
    """End a rank whose main thread is blocked after the loss of another rank.

    Args:
        program: Name of the program, for the line that is printed.
        error: Error that this rank prints; None if another rank prints it.
    """
    if PARENT in os.environ:
        _pass_to_parent(error, error)
    elif error is not None:
        end_progress_line()
        refuse(program, error)
        _pass_to_torchrun(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    # Neither the main thread nor the threads of gloo can end.
    os._exit(EXIT_LOST_RANK)


def _printed_error(error: HydraulisError, variable: str) -> HydraulisError | None:
    """Return the error that this rank prints; None if another rank prints it."""
    if error.code == LOST_RANK:
        return lost_rank_report(error)
    is_first = PARENT in os.environ or os.environ.get(variable, "0") == "0"
    return error if is_first else None


def report_before_meeting(program: str, error: HydraulisError) -> int:
    """Report an error that all ranks of a node share, before the process group exists.

    A file or a device may be missing on one node and present on others, so that the first rank of each node
    prints the error. torchrun terminates the other ranks of a node once one has exited. If the first rank is
    slower than another, it would be terminated before it prints: other ranks wait. With several nodes, ranks
    of nodes without the error would wait for the missing ones until the timeout: all ranks meet first, and
    this rank tells the others its error.

    Args:
        program: Name of the program, for the line that is printed.
        error: The same error on every rank of the node.

    Returns:
        The exit code.
    """
    code = report_as_rank(program, error, "LOCAL_RANK")
    if PARENT in os.environ:
        return code
    if os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE"):
        _tell_others(error)
    elif os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(PATIENCE_S)
    return code


def _tell_others(error: HydraulisError) -> None:
    # Any failure here, such as missing torch, is less important than the printed error.
    with suppress(Exception):
        from hydraulis.runtime.ranks.joining import tell_refusal

        tell_refusal(timedelta(seconds=PATIENCE_S), error)


def _pass_to_parent(printed: HydraulisError | None, error: HydraulisError | None) -> None:
    """Write an error into the file that the parent reads after the ranks' end.

    Args:
        printed: The error to print, with the names of lost ranks; None if another rank passes it.
        error: The error without these names.
    """
    if printed is not None:
        document = {"code": printed.code, "message": str(printed), "unnamed": str(error)}
        os.write(int(os.environ[ERROR_FILE]), json.dumps(document).encode())


def _pass_to_torchrun(error: HydraulisError) -> None:
    """Write the error for torchrun's own report, which links to its manual otherwise."""
    if _ERROR_FILE not in os.environ:
        return
    file = Path(os.environ[_ERROR_FILE])
    verb = "refused" if exit_code(error) == EXIT_REFUSED else "ended"
    message = f"{verb} [{error.code}]: {one_line(error)}"
    document = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
    # An error here must not replace the reported one.
    with suppress(OSError), replace_file(file) as unfinished:
        # Written in full and then renamed: torchrun may terminate this process at any time, and fails on half
        # of a file.
        unfinished.write_text(json.dumps(document), encoding="utf-8")


def lost_rank_report(error: HydraulisError) -> HydraulisError | None:
    """Return the error that this rank prints, with the ranks that do not answer; None if another prints it.

    Args:
        error: Error with the code `lost_rank`, raised on all remaining ranks.
    """
    from hydraulis.runtime.ranks.liveness.heartbeat import current

    heartbeat = current()
    if heartbeat is None:
        # The ranks did not meet: rank 0 is missing, or the store.
        return error if os.environ.get("RANK") == "1" or os.environ.get("LOCAL_RANK") == "0" else None
    printed = heartbeat.find_lost(error)
    if printed is not None and os.environ["RANK"] != "0":
        end_progress_line()
    return printed


def end_progress_line() -> None:
    """On a terminal, begin a new line below the progress line of rank 0, and show the cursor again."""
    if sys.stderr.isatty():
        is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        sys.stderr.write("\n" if is_dumb else f"{_SHOW_CURSOR}\n")


_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def end_with_parent() -> None:
    """Have a local rank terminated when its parent is killed, on Linux; in other processes do nothing."""
    parent = os.environ.get(PARENT)
    if parent is not None:
        signal_at_end_of_parent(int(parent), signal.SIGTERM)


def signal_at_end_of_parent(parent: int, number: signal.Signals) -> None:
    """Have this process receive a signal when its parent ends, on Linux; elsewhere do nothing.

    Args:
        parent: Process id of the parent.
        number: The signal.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        # The parent ended before the call.
        os.kill(os.getpid(), number)
