"""Exit codes, and the one line in which an error is reported."""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from hydraulis.errors import HydraulisError

EXIT_INTERNAL = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE
# As long as a rank may be slower to start than another of its node.
PATIENCE_S = 60.0
_LOCAL_RANK = "LOCAL_RANK"
# Where torchrun looks for what ended a rank: the last that it prints.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def report(program: str, error: HydraulisError) -> int:
    """Write the error to stderr, on one line; give the exit code."""
    sys.stderr.write(f"{program}: error [{error.code}]: {_one_line(error)}\n")
    return EXIT_REFUSED


def report_as_rank(program: str, error: HydraulisError, variable: str) -> int:
    """Report as one of the ranks that are all refused alike: the first does, and torchrun is told by each.

    Args:
        program: as for `report`.
        error: the same on every rank.
        variable: it is 0 where the error is reported: `RANK` for once in a job, `LOCAL_RANK` on a node.
    """
    if os.environ.get(variable, "0") == "0":
        report(program, error)
    _tell_torchrun(error)
    return EXIT_REFUSED


def report_before_meeting(program: str, error: HydraulisError) -> int:
    """Report what the ranks of a node are refused for alike, before they know of one another: its first does.

    torchrun ends the ranks of a node once one has left, also the first, if it was slower and has yet to
    report. So the others wait to be ended.
    """
    code = report_as_rank(program, error, _LOCAL_RANK)
    if os.environ.get(_LOCAL_RANK, "0") != "0":
        time.sleep(PATIENCE_S)
    return code


def _tell_torchrun(error: HydraulisError) -> None:
    """Let torchrun end its own account, which follows, with the error and not with a link to its manual."""
    if _ERROR_FILE not in os.environ:
        return
    file = Path(os.environ[_ERROR_FILE])
    message = f"refused [{error.code}]: {_one_line(error)}"
    document = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
    # The refusal counts, not its echo.
    with suppress(OSError):
        # torchrun fails over half of a file, and may end this process at any time.
        unfinished = file.with_name(f"{file.name}.unfinished")
        unfinished.write_text(json.dumps(document), encoding="utf-8")
        unfinished.replace(file)


def _one_line(error: HydraulisError) -> str:
    return " ".join(str(error).split("\n"))
