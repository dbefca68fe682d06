"""Computes the position of a run in its data."""

import dataclasses
import hashlib
from typing import Any, Self

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.data.sampling.epoch_order import SequenceIndices
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.runtime.checkpoint.manifest import DataCursor


def batch_settings(config: RunConfig) -> dict[str, Any]:
    """Return the fields of a `DataCursor` that depend only on the configuration."""
    return {
        "seed": config.train.seed,
        "tokens_per_batch": config.data.tokens_per_batch,
        "sequences_per_batch": config.data.sequences_per_batch,
        "epoch_end": config.data.epoch_end,
        "max_tokens": config.data.max_tokens,
    }


class DataPosition:
    """Computes the state of the data stream at any step.

    Args:
        config: The run's configuration.
        data: The training data.

    Attributes:
        group: Batches planned together of which the last trained one was part; None before the first step.
    """

    def __init__(self, config: RunConfig, data: Dataset) -> None:
        self._config = config
        self._data = data
        self.group: BatchGroup | None = None
        self._sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)

    def with_epochs(self, epochs: int | None) -> Self:
        """Return the position in the same data with another `train.epochs`, without a group."""
        train = dataclasses.replace(self._config.train, epochs=epochs)
        return type(self)(dataclasses.replace(self._config, train=train), self._data)

    def batch(self, step: int) -> SequenceIndices:
        """Return the sequences of a step's own batch; none after the end of the data."""
        return self._sampler.batch(step - 1).sequences

    def group_after(self, step: int) -> BatchGroup | None:
        """Return the group of which `step` was trained and the next step is left; None between two groups."""
        is_within = self.group is not None and step in self.group and step + 1 in self.group
        return self.group if is_within else None

    def cursor(self, step: int, group: BatchGroup | None = None) -> DataCursor:
        """Return the cursor after `step` completed iterations, within a group or not."""
        return DataCursor(
            fingerprint=self._data.fingerprint,
            epochs=self._config.train.epochs,
            next_batch=hashlib.sha256(self.batch(step + 1).astype("<i8").tobytes()).hexdigest(),
            group=group,
            **batch_settings(self._config),
        )
