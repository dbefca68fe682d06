"""The loss of one micro-batch as its share of the mean over the whole global batch.

Legend: T tokens of the packed micro-batch, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hydraulis.errors import InvalidInputError

IGNORE_INDEX = -100
"""The target of a token that does not count: padding, prompts, the last token of a sequence."""


def token_loss(logits_TV: Tensor, target_T: Tensor, denominator: int) -> Tensor:
    """Sum the cross entropy over the targets that count and divide by the batch's one denominator.

    The losses, and the gradients, of all micro-batches of a global batch add up to those of the mean over
    its target tokens, however the batch was cut.

    Args:
        logits_TV: unnormalised scores.
        target_T: int64, the token that follows each token, or `IGNORE_INDEX`.
        denominator: target tokens of the whole global batch, at least 1.

    Returns:
        A scalar in at least float32; 0 if no target counts.

    Raises:
        InvalidInputError: the denominator is below 1 (code `loss_denominator`).
    """
    check_denominator(denominator)
    wide_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    total = F.cross_entropy(wide_TV, target_T, ignore_index=IGNORE_INDEX, reduction="sum")
    return total / denominator


def check_denominator(denominator: int) -> None:
    """Raise `InvalidInputError` (code `loss_denominator`) unless the denominator is at least 1."""
    if denominator < 1:
        message = (
            f"denominator = {denominator} must be at least 1; "
            "it is the number of target tokens of the global batch, and a batch without any has no loss"
        )
        raise InvalidInputError(message, code="loss_denominator")
