"""The report of a lost rank, which one of the remaining ranks prints."""

import os
import sys

from hydraulis.errors import HydraulisError

_SHOW_CURSOR = "\x1b[?25h"


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
