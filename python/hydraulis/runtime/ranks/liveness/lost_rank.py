"""The error of a rank that lost the connection to another one."""

import re

import torch.distributed as dist

from hydraulis.errors import HydraulisError

LOST_RANK = "lost_rank"
# A gloo error starts with the path of a gloo source file.
_GLOO = re.compile(r"\[\S*gloo/transport/\S*\] ")


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that another rank can no longer be reached."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and _GLOO.match(str(error)) is not None
    )


def lost_rank(error: BaseException, then: str = "start again") -> HydraulisError:
    """Build the error of a rank that lost the connection to another one.

    Args:
        error: Error of the failed communication.
        then: Remedy after the cause is removed, as the end of the message.
    """
    # The sentences after gloo's first one are advice for developers of distributed programs.
    why = _GLOO.sub("", str(error).split("\n")[0]).split(". ")[0]
    message = (
        f"this rank lost another one ({why}): the other rank's report or torchrun's has the cause; a rank "
        "that SIGKILL ended may have run out of memory, and one that is only slow needs a longer "
        f"train.timeout_s; {then}"
    )
    return HydraulisError(message, code="lost_rank")
