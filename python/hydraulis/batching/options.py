"""Checks of the options of a sampler, before anything is computed."""

import operator
from typing import Any, Final

import numpy as np

from hydraulis.batching.items.pool import token_limit
from hydraulis.errors import InvalidInputError

# Options in whole numbers, with the least value of each; None for no least value.
_WHOLE: Final = {
    "ranks": 1,
    "cap_tokens": 1,
    "rank": 0,
    "sequences_per_step": 1,
    "tokens_per_step": 1,
    "micro_batches": 1,
    "steps_per_epoch": 1,
    "least_micro_batches": 0,
    "multiple_of": 1,
    "cap_extra_tokens": 0,
    "pad_sequence_to": 1,
    "pad_to": 1,
    "seed": None,
}
_OPTIONAL: Final = (
    "rank",
    "sequences_per_step",
    "tokens_per_step",
    "micro_batches",
    "steps_per_epoch",
    "cap_extra_tokens",
)
_BLOCK: Final = 1 << 20
_SWITCHES: Final = ("equal_sequences", "shuffle", "drop_last", "allow_empty")


def to_whole(name: str, value: Any, least: int | None = None) -> int:
    """Convert a whole number of any type, such as NumPy's, to an int.

    Args:
        name: Name of the option.
        value: Value of the option.
        least: Least value; None for none.

    Raises:
        InvalidInputError: The value is no whole number, or below the least one (code `argument_invalid`).
    """
    given: Any = None if isinstance(value, bool) else value
    try:
        number = operator.index(given)
    except TypeError:
        message = f"{name} is {value!r}: it must be a whole number (an int); correct it"
        raise InvalidInputError(message, code="argument_invalid") from None
    if least is not None and number < least:
        message = f"{name} is {number}: it must be at least {least}; correct it"
        raise InvalidInputError(message, code="argument_invalid")
    return number


def check_options(sampler: Any) -> None:
    """Check the options of a sampler, and convert numbers and switches to Python's types.

    Args:
        sampler: `BalancedBatchSampler` with its attributes set.

    Raises:
        InvalidInputError: An option is outside its range or contradicts another (code `argument_invalid`).
    """
    _convert(sampler)
    sizes = (sampler.sequences_per_step, sampler.tokens_per_step)
    if None not in sizes or (sizes == (None, None) and sampler.micro_batches is None):
        message = (
            "the size of a step is needed: give sequences_per_step, tokens_per_step or micro_batches"
            if sizes == (None, None)
            else "sequences_per_step and tokens_per_step both set the size of a step; leave one out"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if sampler.steps_per_epoch is not None and sizes != (None, None):
        message = (
            f"steps_per_epoch is {sampler.steps_per_epoch}: with sequences_per_step or tokens_per_step every "
            "epoch has the same number of steps; leave it out"
        )
        raise InvalidInputError(message, code="argument_invalid")
    check_padding(sampler.cap_tokens, sampler.pad_to, sampler.pad_sequence_to)
    sequences = sampler.sequences_per_step
    if sequences is not None and sequences < sampler.ranks and not sampler.allow_empty:
        message = (
            f"sequences_per_step is {sequences}: each of {sampler.ranks} ranks needs a sequence; raise it, "
            "or set allow_empty=True"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if sampler.rank is not None and sampler.rank >= sampler.ranks:
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


def check_padding(cap_tokens: int, pad_to: int, pad_sequence_to: int) -> None:
    """Check that a padded sequence fits into a padded micro-batch.

    Raises:
        InvalidInputError: None fits (code `argument_invalid`).
    """
    if token_limit(cap_tokens, pad_to, pad_sequence_to):
        return
    least = -(-pad_sequence_to // pad_to) * pad_to
    message = (
        f"cap_tokens is {cap_tokens}: with pad_to = {pad_to} and pad_sequence_to = {pad_sequence_to} it must "
        f"be at least {least}; raise it, or lower them"
    )
    raise InvalidInputError(message, code="argument_invalid")


def _convert(sampler: Any) -> None:
    for name, least in _WHOLE.items():
        value = getattr(sampler, name)
        if value is not None or name not in _OPTIONAL:
            setattr(sampler, name, to_whole(name, value, least))
    for name in _SWITCHES:
        value = getattr(sampler, name)
        if not isinstance(value, bool | np.bool_):
            message = f"{name} is {value!r}: it must be True or False; correct it"
            raise InvalidInputError(message, code="argument_invalid")
        setattr(sampler, name, bool(value))
    if sampler.speeds is not None:
        try:
            sampler.speeds = tuple(float(speed) for speed in sampler.speeds)
        except (TypeError, ValueError):
            message = f"speeds is {sampler.speeds!r}: it must have one number for each rank; correct it"
            raise InvalidInputError(message, code="argument_invalid") from None


def check_targets(targets: Any, lengths: Any, limit: int | None) -> None:
    """Check that each sequence has a number of targets that its tokens can have.

    All tokens of a sequence may be targets, as those of an encoder. A truncated sequence has at most
    `limit - 1`, because the collators make no first token a target.

    Args:
        targets: Targets of each sequence; None for no check.
        lengths: Tokens of each sequence, before truncation.
        limit: Most tokens of a sequence, to which longer ones are truncated; None without truncation.

    Raises:
        InvalidInputError: A sequence has another number of targets (code `lengths_invalid`).
    """
    if targets is None:
        return
    if len(targets) != len(lengths):
        message = f"targets has {len(targets)} entries and lengths {len(lengths)}: give one for each sequence"
        raise InvalidInputError(message, code="lengths_invalid")
    for start in range(0, len(lengths), _BLOCK):
        given, tokens = targets[start : start + _BLOCK], lengths[start : start + _BLOCK]
        most = tokens if limit is None else np.where(tokens > limit, limit - 1, tokens)
        wrong = np.flatnonzero((given < 0) | (given > most))
        if not wrong.size:
            continue
        place = wrong[0]
        is_cut = most[place] < tokens[place]
        message = f"sequence {start + place} has {given[place]} targets and {tokens[place]} tokens" + (
            f", of which truncation leaves {limit}: targets are at least 0 and at most {most[place]}; count "
            f"those of the first {limit} tokens"
            if is_cut
            else ": targets are at least 0 and at most the tokens; correct them"
        )
        raise InvalidInputError(message, code="lengths_invalid")


def check_data(data: Any, num_lengths: int) -> None:
    """Check that a data set has as many sequences as there are lengths.

    Args:
        data: Data set; one without a length is not checked.
        num_lengths: Number of the lengths.

    Raises:
        InvalidInputError: It has more or fewer (code `lengths_invalid`).
    """
    if hasattr(data, "__len__") and len(data) != num_lengths:
        message = (
            f"the data set has {len(data)} sequences and lengths {num_lengths}: give the length of each "
            "sequence of this data set"
        )
        raise InvalidInputError(message, code="lengths_invalid")
