"""A process that is one rank of several: how it reports what all of them are refused for."""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from hydraulis.cli.exit import EXIT_REFUSED, LOST_RANK, exit_code, one_line, report
from hydraulis.cli.ranks.loss import told_loss
from hydraulis.errors import HydraulisError
from hydraulis.files import replace_file

# Names the process that started a rank of `hydraulis profile --ranks`.
PARENT = "HYDRAULIS_RANKS_PARENT"
# As long as a rank may be slower to start than another.
PATIENCE_S = 60.0
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
    told = _told(error, variable)
    if told is not None:
        report(program, told)
    _tell_torchrun(told or error)
    return exit_code(error)


def _told(error: HydraulisError, variable: str) -> HydraulisError | None:
    """Give what this rank reports, if it is the one that does."""
    # A command that has started its ranks itself passes on what one of them says.
    if PARENT in os.environ:
        return error
    if error.code == LOST_RANK:
        return told_loss(error)
    return error if os.environ.get(variable, "0") == "0" else None


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
        from hydraulis.runtime.ranks.distributed import joined

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
    with suppress(OSError), replace_file(file) as unfinished:
        # torchrun fails over half of a file, and may end this process at any time.
        unfinished.write_text(json.dumps(document), encoding="utf-8")
