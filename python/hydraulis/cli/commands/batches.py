"""Batches drawn from data, in one way for all commands: as training draws them."""

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
class DrawnBatches:
    """The sequences of each batch.

    Attributes:
        lengths: tokens of each.
        places: where each stands in the data, from 0.
    """

    lengths: Sequence[Integers]
    places: Sequence[Integers]


def drawn(arguments: argparse.Namespace, lengths: Integers, progress: Progress) -> DrawnBatches:
    """Draw the batches that `--tokens-per-batch`, `--count` and `--seed` ask for; see `first_batches`.

    Raises:
        InvalidInputError: the seed is negative (code `argument_invalid`).
    """
    sampler = BatchSampler(lengths, arguments.tokens_per_batch, arguments.seed)
    return first_batches(BATCH_OPTION, sampler, lengths, arguments.count, progress)


def first_batches(
    budget: str, sampler: BatchSampler, lengths: Integers, count: int, progress: Progress
) -> DrawnBatches:
    """Draw the first batches of a sampler of sequences of these lengths.

    If they repeat the same few sequences, standard error says so, with what their budget is called.
    """
    said = describe_repeats(budget, sampler, lengths)
    if said:
        with progress.aside():
            sys.stderr.write(f"{said}\n")
    places = []
    for index in range(count):
        progress("drawing batches", index, count)
        places.append(sampler.batch(index).documents)
    return DrawnBatches(lengths=[lengths[of_batch] for of_batch in places], places=places)
