"""Epochs of one number of steps, for frameworks that read the length of an epoch once."""

import math
from dataclasses import replace
from itertools import count

from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.errors import InvalidInputError


def with_equal_epochs(
    sampler: BalancedBatchSampler, *, epochs: float | None, max_steps: int | None
) -> BalancedBatchSampler:
    """Give every epoch of a run the most steps that one of them needs.

    Args:
        sampler: Sampler of the run, with arrays or maps as lengths. One whose epochs already have the same
            number of steps is returned as it is.
        epochs: Number of epochs of the run; None or -1 for no limit, as frameworks state it.
        max_steps: Number of steps of the run; None or -1 for no limit.

    Raises:
        InvalidInputError: The run has no end (code `argument_invalid`).
    """
    sizes = (sampler.sequences_per_step, sampler.tokens_per_step, sampler.steps_per_epoch)
    if sizes != (None, None, None):
        return sampler
    limits = (_limit(epochs), _limit(max_steps))
    if limits == (math.inf, math.inf):
        message = (
            "the run has no number of epochs or steps, and its epochs would differ by a few steps: "
            "set one of them, or give steps_per_epoch or sequences_per_step"
        )
        raise InvalidInputError(message, code="argument_invalid")
    most = 1
    for epoch in count():
        if epoch and (epoch >= limits[0] or epoch * most >= limits[1]):
            break
        most = max(most, sampler.count_steps(epoch))
    return replace(sampler, steps_per_epoch=most)


def _limit(value: float | None) -> float:
    return math.inf if value is None or value < 0 else value
