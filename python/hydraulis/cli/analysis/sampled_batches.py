"""Batches sampled from data in the same way as in training, for several commands."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hydraulis.cli.options import BATCH_OPTION
from hydraulis.cli.terminal.progress import Progress
from hydraulis.data.sampling.run_sampler import describe_repeats
from hydraulis.data.sampling.sampler import BatchSampler

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBatches:
    """The sequences of each batch.

    Attributes:
        lengths: Tokens of each sequence, int64 [sequences], by batch.
        places: Position of each sequence in the data, from 0, int64 [sequences], by batch.
    """

    lengths: Sequence[Integers]
    places: Sequence[Integers]


def sample_batches(arguments: argparse.Namespace, lengths: Integers, progress: Progress) -> SampledBatches:
    """Sample batches by `--tokens-per-batch`, `--count` and `--seed`; see `first_batches`.

    Args:
        arguments: Options of the command.
        lengths: Tokens of each sequence of the data, int64 [sequences].
        progress: Progress of the command.

    Raises:
        InvalidInputError: The seed is negative (code `argument_invalid`).
    """
    sampler = BatchSampler(lengths, arguments.tokens_per_batch, arguments.seed)
    return first_batches(BATCH_OPTION, sampler, lengths, arguments.count, progress)


def first_batches(
    budget: str, sampler: BatchSampler, lengths: Integers, count: int, progress: Progress
) -> SampledBatches:
    """Sample the first batches of a sampler.

    Standard error has a note if the batches repeat the same few sequences.

    Args:
        budget: Name of the option or key that sets the tokens of a batch, for that note.
        sampler: Sampler of the data.
        lengths: Tokens of each sequence of the data, int64 [sequences].
        count: Number of batches.
        progress: Progress of the command.
    """
    note = describe_repeats(budget, sampler, lengths)
    if note:
        with progress.aside():
            sys.stderr.write(f"{note}\n")
    places = []
    for index in range(count):
        progress("sampling batches", index, count)
        places.append(sampler.batch(index).sequences)
    return SampledBatches(lengths=[lengths[of_batch] for of_batch in places], places=places)
