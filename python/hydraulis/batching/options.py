"""Checks of the options of a sampler, before anything is computed."""

from typing import Any

from hydraulis.errors import InvalidInputError


def check_options(sampler: Any) -> None:
    """Check the options of a sampler.

    Args:
        sampler: `BalancedBatchSampler` with its attributes set.

    Raises:
        InvalidInputError: An option is outside its range or contradicts another (code `argument_invalid`).
    """
    sizes = (sampler.sequences_per_step, sampler.tokens_per_step)
    if None not in sizes or (sizes == (None, None) and sampler.micro_batches is None):
        message = "the size of a step is needed: give sequences_per_step, tokens_per_step or micro_batches"
        raise InvalidInputError(message, code="argument_invalid")
    for name in ("sequences_per_step", "tokens_per_step", "pad_sequence_to", "pad_to"):
        value = getattr(sampler, name)
        if value is not None and value < 1:
            message = f"{name} is {value}: it must be at least 1; correct it"
            raise InvalidInputError(message, code="argument_invalid")
    if sampler.rank is not None and not 0 <= sampler.rank < sampler.ranks:
        message = f"rank is {sampler.rank}: it must be from 0 to {sampler.ranks - 1}, below ranks; correct it"
        raise InvalidInputError(message, code="argument_invalid")
    if sampler.rank is None and sampler.barrier == "step" and sampler.micro_batches is None:
        message = (
            "barrier='step' gives ranks different numbers of micro-batches, which cannot be yielded in turn; "
            "give rank, micro_batches, or barrier='micro_batch'"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if sampler.groups is None and sampler.prefix_tokens is not None:
        message = "prefix_tokens are given without groups; give the group of each sequence too"
        raise InvalidInputError(message, code="argument_invalid")
    if sampler.groups is not None and sampler.too_long == "truncate":
        message = "too_long='truncate' cannot cut a group; choose 'refuse' or 'drop'"
        raise InvalidInputError(message, code="argument_invalid")
    if sampler.too_long not in ("refuse", "drop", "truncate"):
        message = f"too_long is '{sampler.too_long}': give 'refuse', 'drop' or 'truncate'"
        raise InvalidInputError(message, code="argument_invalid")


def check_targets(targets: Any, num_sequences: int) -> None:
    """Check that there are as many target counts as sequences.

    Raises:
        InvalidInputError: There are more or fewer (code `lengths_invalid`).
    """
    if targets is not None and len(targets) != num_sequences:
        message = (
            f"targets has {len(targets)} entries and lengths {num_sequences}: give one for each sequence"
        )
        raise InvalidInputError(message, code="lengths_invalid")
