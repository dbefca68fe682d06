"""Refuses to write a state with numbers that are not finite.

Such a checkpoint could not be resumed, and would take the place of the last sound one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hydraulis.errors import HydraulisError


def check_sound(tensors: Mapping[str, Tensor], step: int, rank: int) -> None:
    """Check that all numbers of a rank's shard are finite.

    Args:
        tensors: Tensors in host memory, by their names in the shard.
        step: Number of completed iterations.
        rank: Rank that owns the shard, for the message.

    Raises:
        HydraulisError: A number is infinite or no number (code `state_not_finite`).
    """
    for name, tensor in tensors.items():
        # Smallest and largest element are NaN if any is, and need no further memory.
        if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
            message = (
                f"{name} has a number that is not finite on rank {rank} after step {step}: this checkpoint "
                "is not written, and earlier ones are kept; resume from one with a lower "
                "optimizer.learning_rate"
            )
            raise HydraulisError(message, code="state_not_finite")
