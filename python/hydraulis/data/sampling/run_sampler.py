"""Whether a batch repeats the same few sequences over and over, which is seldom meant."""

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import DataConfig
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset, Integers, SequenceSource
from hydraulis.data.sampling.epoch_order import Mixture
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.text.numbers import format_count

# In a batch. So many of a small file may be meant, to try something out; more are a mistake as a rule.
MOST_EPOCHS = 100


def describe_repeats(key: str, sampler: BatchSampler, lengths: Integers) -> str:
    """Say that a batch holds more epochs than one would mean it to; empty if it does not.

    Args:
        key: Name of the key or option that sets the batch budget, for the message.
        sampler: Sampler of the batches.
        lengths: Tokens of each sequence, int64 [n].
    """
    if sampler.epochs_per_batch <= MOST_EPOCHS:
        return ""
    epoch = f"{format_count(len(lengths), 'sequence')} of {format_count(int(lengths.sum()), 'token')} in all"
    return (
        f"{key} = {sampler.per_batch:,}: the data, {epoch}, come about "
        f"{sampler.epochs_per_batch:,.0f} times in each batch: it holds the same over and over; lower it, or "
        "add data"
    )


def describe_run_repeats(config: RunConfig, data: SequenceSource) -> str:
    """Say it of the batches of a run; see `describe_repeats`."""
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    return describe_repeats(f"data.{config.data.budget_key}", sampler, data.lengths)


def make_sampler(
    config: DataConfig, dataset: SequenceSource, seed: int, epochs: int | None = None
) -> BatchSampler:
    """Make the sampler of a configuration.

    Args:
        config: the section `data`.
        dataset: what it draws from; where it has weights, they count.
        seed: fixes the order.
        epochs: after how many of them there are no more batches; never when None.
    """
    lengths = dataset.lengths
    order = None
    if isinstance(dataset, Dataset) and dataset.weights is not None:
        order = Mixture(dataset.source_bounds, lengths, dataset.weights, seed)
    sizes, per_batch = batch_budget(config, lengths)
    return BatchSampler(sizes, per_batch, seed, order=order, epoch_end=config.epoch_end, epochs=epochs)


def batch_budget(config: DataConfig, lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return what each sequence takes of a batch's budget, and the budget."""
    if config.tokens_per_batch is not None:
        return lengths, config.tokens_per_batch
    assert config.sequences_per_batch is not None  # the configuration has one of the two
    return np.ones_like(lengths), config.sequences_per_batch
