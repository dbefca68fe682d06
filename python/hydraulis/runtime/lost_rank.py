"""A rank that is gone: of a killed one the others know that a connection closed, and no more."""

import re

import torch.distributed as dist

from hydraulis.errors import HydraulisError

# How gloo begins an error: with a file of its own.
_GLOO = re.compile(r"\[\S*gloo/transport/\S*\] ")


def is_lost(error: BaseException) -> bool:
    """Tell whether an error says that another rank cannot be reached any more."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and _GLOO.match(str(error)) is not None
    )


def lost_rank(error: BaseException, then: str = "start again") -> HydraulisError:
    """Make the error of a rank that lost another one.

    Args:
        error: that it was lost by.
        then: what there is to do, once the cause is mended.
    """
    # What follows the first sentence of gloo's is advice to those who develop on it.
    why = _GLOO.sub("", str(error).split("\n")[0]).split(". ")[0]
    message = (
        f"another rank ended, or does not answer within train.timeout_s ({why}): what it or torchrun says of "
        f"that is the cause, and a rank that was killed (SIGKILL) had perhaps no memory; {then}"
    )
    return HydraulisError(message, code="lost_rank")
