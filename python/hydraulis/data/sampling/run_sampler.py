"""The sampler of a run's configuration, and a warning about batches that repeat the data."""

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import DataConfig
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset, Integers, SequenceSource
from hydraulis.data.sampling.epoch_order import Mixture
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.text.values import format_count

# Epochs in one batch. A trial on a small file may have this many; more are usually a mistake.
MAX_EPOCHS = 100


def describe_repeats(key: str, sampler: BatchSampler, lengths: Integers) -> str:
    """Return a warning about a batch with more than 100 epochs; an empty string without need.

    Args:
        key: Name of the key or option that sets the batch budget, for the message.
        sampler: Sampler of the batches.
        lengths: Tokens of each sequence, int64 [n].
    """
    if sampler.epochs_per_batch <= MAX_EPOCHS:
        return ""
    epoch = f"{format_count(len(lengths), 'sequence')} of {format_count(int(lengths.sum()), 'token')} in all"
    return (
        f"{key} = {sampler.per_batch:,}: each batch repeats the data ({epoch}) about "
        f"{sampler.epochs_per_batch:,.0f} times; lower it, or add data"
    )


def describe_run_repeats(config: RunConfig, data: SequenceSource) -> str:
    """Return the warning of `describe_repeats` for a run."""
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    return describe_repeats(f"data.{config.data.budget_key}", sampler, data.lengths)


def make_sampler(
    config: DataConfig, dataset: SequenceSource, seed: int, epochs: int | None = None
) -> BatchSampler:
    """Make the sampler of a configuration.

    Args:
        config: Section `data`.
        dataset: Sequences to sample, by weight if their sources have weights.
        seed: Seed of the order.
        epochs: Number of epochs of the stream; None for no end.
    """
    lengths = dataset.lengths
    order = None
    if isinstance(dataset, Dataset) and dataset.weights is not None:
        order = Mixture(dataset.source_bounds, lengths, dataset.weights, seed)
    sizes, per_batch = batch_budget(config, lengths)
    return BatchSampler(sizes, per_batch, seed, order=order, epoch_end=config.epoch_end, epochs=epochs)


def batch_budget(config: DataConfig, lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the cost of each sequence in a batch's budget, and the budget."""
    if config.tokens_per_batch is not None:
        return lengths, config.tokens_per_batch
    assert config.sequences_per_batch is not None  # the configuration has one of the two
    return np.ones_like(lengths), config.sequences_per_batch
