"""Epochs of one number of steps, for frameworks that read the length of an epoch once."""

import math
from dataclasses import replace
from typing import Final, TypeVar

from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.errors import InfeasibleError, InvalidInputError

Sampler = TypeVar("Sampler", bound=BalancedBatchSampler)

# Most sequences of all epochs together, which take up to half an hour to divide.
_MOST_DIVIDED: Final = 1 << 30
# Numbers of steps that are tried, from that of the largest epoch.
_TRIED: Final = 8


def with_equal_epochs(sampler: Sampler, *, epochs: float | None, max_steps: int | None) -> Sampler:
    """Give every epoch of a run the least number of steps, or nearly so, that each can have.

    It divides every epoch, so that none of them is refused after the first step.

    Args:
        sampler: Sampler of the run, with arrays or maps as lengths. One whose epochs already have the same
            number of steps is returned as it is.
        epochs: Number of epochs of the run; None or -1 for no limit, as frameworks state it.
        max_steps: Number of steps of the run; None or -1 for no limit.

    Raises:
        InvalidInputError: The run has no end, or too many sequences in all of its epochs (code
            `argument_invalid`).
        InfeasibleError: The epochs have no common number of steps (code `batch_unplaceable`).
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
    counts = _count_epochs(sampler, *limits)
    failure: InfeasibleError | None = None
    for count in range(max(counts), max(counts) + _TRIED):
        try:
            return _divided(sampler, count, counts)
        except InfeasibleError as error:
            failure = failure or error
    message = (
        f"cap_tokens is {sampler.cap_tokens:,} and micro_batches {sampler.micro_batches} on {sampler.ranks} "
        f"ranks: the {len(counts):,} epochs of the run have {min(counts):,} to {max(counts):,} steps, and "
        f"not every epoch can have the same number; {'' if sampler.drop_last else 'pass drop_last=True, or '}"
        "give sequences_per_step"
    )
    raise InfeasibleError(message, code="batch_unplaceable") from failure


def _count_epochs(sampler: BalancedBatchSampler, epochs: float, max_steps: float) -> list[int]:
    """Count the steps of each epoch of a run, at least one."""
    counts = [max(1, sampler.count_steps(0))]
    number = min(epochs, max_steps / counts[0])
    if number * sampler.num_sequences > _MOST_DIVIDED:
        message = (
            f"the run has {math.ceil(number):,} epochs of {sampler.num_sequences:,} sequences: to give them "
            f"one number of steps it divides all of them at its start, at most {_MOST_DIVIDED:,} sequences; "
            "lower the number of epochs or steps, or give sequences_per_step"
        )
        raise InvalidInputError(message, code="argument_invalid")
    while len(counts) < epochs and len(counts) * max(counts) < max_steps:
        counts.append(sampler.count_steps(len(counts)))
    return counts


def _divided(sampler: Sampler, count: int, counts: list[int]) -> Sampler:
    """Return the sampler with a number of steps, of which each epoch has been divided into as many."""
    equal = replace(sampler, steps_per_epoch=count)
    for epoch, natural in enumerate(counts):
        # An epoch of this number of steps is the same in both samplers.
        if natural != count:
            equal.check_epoch(epoch)
    return equal


def _limit(value: float | None) -> float:
    return math.inf if value is None or value < 0 else value
