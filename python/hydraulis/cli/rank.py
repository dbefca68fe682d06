"""A process that is one rank of several: how it reports what all of them are refused for."""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from hydraulis.cli.exit import EXIT_REFUSED, LOST_RANK, exit_code, one_line, report
from hydraulis.errors import HydraulisError
from hydraulis.planner.files import replaced

# Names the process that started a rank of `hydraulis profile --ranks`.
PARENT = "HYDRAULIS_RANKS_PARENT"
# As long as a rank may be slower to start than another.
PATIENCE_S = 60.0
# As long as who reports the loss of a rank may take to find out.
STORE_S = 5.0
# As long as rank 0, if it is left, may take longer than others to take its live line from the terminal.
DISPLAY_S = 2.0
_POLL_S = 0.05
_SHOW_CURSOR = "\x1b[?25h"
# Where torchrun looks for what ended a rank: the last that it prints.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def is_rank() -> bool:
    """Tell whether this process was started as a rank: by torchrun, or by `hydraulis profile --ranks`."""
    return "RANK" in os.environ


def report_as_rank(program: str, error: HydraulisError, variable: str = "RANK") -> int:
    """Report as one of the ranks that are all refused alike: the first does, and torchrun is told by each.

    Args:
        program: as for `report`.
        error: the same on every rank, or `lost_rank` on all that are left.
        variable: it is 0 where the error is reported: `RANK` for once in a job, `LOCAL_RANK` on a node.
    """
    # A command that has started its ranks itself passes on what one of them says.
    if PARENT in os.environ or _is_first(error, variable):
        report(program, error)
    _tell_torchrun(error)
    return exit_code(error)


def _is_first(error: HydraulisError, variable: str) -> bool:
    """Tell whether it is this rank that reports; of ranks that are left it is the first to come."""
    if error.code != LOST_RANK:
        return os.environ.get(variable, "0") == "0"
    with suppress(Exception):
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # torchrun's own, which outlives any rank, and the ranks that it starts anew.
        store = TCPStore(host, port, timeout=timedelta(seconds=STORE_S))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        count = partial(store.add, f"hydraulis/lost-rank/{attempt}")
        if sys.stderr.isatty() and os.environ["RANK"] != "0" and not _rank_zero_comes(count):
            _leave_its_line()
        return count(1) == 1
    return True


def _rank_zero_comes(count: Callable[[int], int]) -> bool:
    """Wait for rank 0, which shows a live line: what others print would be glued to it, and erased with it.

    Args:
        count: adds to the number of ranks that have come, and gives it.
    """
    deadline = time.monotonic() + DISPLAY_S
    while time.monotonic() < deadline:
        if count(0):
            return True
        time.sleep(_POLL_S)
    return False


def _leave_its_line() -> None:
    """Let what rank 0 has left on the terminal stand, and begin a line of its own."""
    is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    sys.stderr.write("\n" if is_dumb else f"{_SHOW_CURSOR}\n")


def report_before_meeting(program: str, error: HydraulisError) -> int:
    """Report what the ranks of a node are refused for alike, before they know of one another: its first does.

    What one node lacks, such as a file or a device, the others may have: each says it once. torchrun ends the
    ranks of a node once one has left, also the first, if it was slower and has yet to report; and ranks of
    other nodes that were not refused would wait for those that were. So all meet before they leave; those of
    one node, where nobody else waits, are spared that, and wait to be ended.
    """
    code = report_as_rank(program, error, "LOCAL_RANK")
    if PARENT in os.environ:
        return code
    if os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE"):
        _meet()
    elif os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(PATIENCE_S)
    return code


def _meet() -> None:
    # Whatever keeps it from that, such as that there is no torch: it has said what matters.
    with suppress(Exception):
        from hydraulis.runtime.distributed import joined

        with joined(timedelta(seconds=PATIENCE_S)):
            pass


def _tell_torchrun(error: HydraulisError) -> None:
    """Let torchrun end its own account, which follows, with the error and not with a link to its manual."""
    if _ERROR_FILE not in os.environ:
        return
    file = Path(os.environ[_ERROR_FILE])
    word = "refused" if exit_code(error) == EXIT_REFUSED else "ended"
    message = f"{word} [{error.code}]: {one_line(error)}"
    document = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
    # The refusal counts, not its echo.
    with suppress(OSError), replaced(file) as unfinished:
        # torchrun fails over half of a file, and may end this process at any time.
        unfinished.write_text(json.dumps(document), encoding="utf-8")
