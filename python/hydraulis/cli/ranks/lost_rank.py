"""The report of a lost rank: the first of the remaining ranks names those that do not answer."""

import os
import sys
import time
from typing import TYPE_CHECKING

from hydraulis.errors import HydraulisError

if TYPE_CHECKING:
    from hydraulis.runtime.ranks.liveness import RollCall

# Most time between two ranks' detection of the loss. torchrun kills the remaining ranks after 30 s.
ANSWER_S = 5.0
# Most time by which rank 0 may be later than others, because it removes its progress line first.
DISPLAY_S = 2.0
_POLL_S = 0.05
_SHOW_CURSOR = "\x1b[?25h"


def lost_rank_report(error: HydraulisError) -> HydraulisError | None:
    """Return the error that this rank prints, with the ranks that do not answer; None if another prints it.

    Args:
        error: Error with the code `lost_rank`, raised on all remaining ranks.
    """
    from hydraulis.runtime.ranks.liveness import RollCall

    try:
        check = RollCall()
        if sys.stderr.isatty() and os.environ["RANK"] != "0" and not _is_rank_zero_alive(check):
            _end_progress_line()
        if not check.answer():
            return None
        missing = check.missing(ANSWER_S)
        who = f"no answer from {check.named(missing)}" if missing else "all ranks answer again"
    except RuntimeError:
        # The store was lost with its node: every remaining rank reports.
        return error
    return HydraulisError(f"{who}: {error}", code=error.code)


def _is_rank_zero_alive(check: "RollCall") -> bool:
    """Wait for an answer of rank 0, which would erase other ranks' output with its progress line."""
    deadline = time.monotonic() + DISPLAY_S
    while time.monotonic() < deadline:
        if check.num_answers():
            return True
        time.sleep(_POLL_S)
    return False


def _end_progress_line() -> None:
    """Begin a new line below the progress line of a lost rank 0, and show the cursor again."""
    is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    sys.stderr.write("\n" if is_dumb else f"{_SHOW_CURSOR}\n")
