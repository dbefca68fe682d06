"""The end of a rank's process when the process that started it has ended."""

import ctypes
import os
import signal
import sys

from hydraulis.cli.ranks.report import PARENT

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
