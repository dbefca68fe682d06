"""Batches drawn from data, in one way for all commands: as training draws them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hydraulis.cli.progress import Progress
from hydraulis.data.sampler import BatchSampler

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
    """Draw the batches that `--tokens-per-batch`, `--count` and `--seed` ask for.

    Raises:
        InvalidInputError: the seed is negative (code `sampler_input`).
    """
    sampler = BatchSampler(lengths, arguments.tokens_per_batch, arguments.seed)
    return first_batches(sampler, lengths, arguments.count, progress)


def first_batches(sampler: BatchSampler, lengths: Integers, count: int, progress: Progress) -> DrawnBatches:
    """Draw the first batches of a sampler of sequences of these lengths."""
    places = []
    for step in range(count):
        progress("drawing batches", step, count)
        places.append(sampler.batch(step).documents)
    return DrawnBatches(lengths=[lengths[of_batch] for of_batch in places], places=places)
