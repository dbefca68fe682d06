"""How the loss of a rank is told: once, by the first of those that are left, with who does not answer."""

import os
import sys
import time
from typing import TYPE_CHECKING

from hydraulis.errors import HydraulisError

if TYPE_CHECKING:
    from hydraulis.runtime.ranks.liveness import RollCall

# As long as a rank may find out later than another that one is gone. torchrun kills what is left after 30 s.
ANSWER_S = 5.0
# As long as rank 0, if it is left, may take longer than others to take its live line from the terminal.
DISPLAY_S = 2.0
_POLL_S = 0.05
_SHOW_CURSOR = "\x1b[?25h"


def told_loss(error: HydraulisError) -> HydraulisError | None:
    """Give what this rank reports of a loss: its error and who does not answer; None if another one does.

    Args:
        error: `lost_rank`, as every rank that is left has it.
    """
    from hydraulis.runtime.ranks.liveness import RollCall

    try:
        roll_call = RollCall()
        if sys.stderr.isatty() and os.environ["RANK"] != "0" and not _rank_zero_comes(roll_call):
            _leave_its_line()
        if not roll_call.answer():
            return None
        missing = roll_call.missing(ANSWER_S)
        who = f"no answer from {roll_call.named(missing)}" if missing else "all ranks answer again"
    except RuntimeError:
        # The store went with its node: whoever is left says what it knows.
        return error
    return HydraulisError(f"{who}: {error}", code=error.code)


def _rank_zero_comes(roll_call: "RollCall") -> bool:
    """Wait for rank 0, whose live line what others print would be glued to, and erased with."""
    deadline = time.monotonic() + DISPLAY_S
    while time.monotonic() < deadline:
        if roll_call.num_answers():
            return True
        time.sleep(_POLL_S)
    return False


def _leave_its_line() -> None:
    """Let what rank 0 has left on the terminal stand, and begin a line of its own."""
    is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    sys.stderr.write("\n" if is_dumb else f"{_SHOW_CURSOR}\n")
