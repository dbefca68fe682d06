"""Computes the position of a run in its data."""

import hashlib
from typing import Any

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
from hydraulis.data.sampling.batch_group import BatchGroup
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

    def group_after(self, step: int) -> BatchGroup | None:
        """Return the group of which `step` was trained and the next step is left; None between two groups."""
        is_within = self.group is not None and step in self.group and step + 1 in self.group
        return self.group if is_within else None

    def cursor(self, step: int, group: BatchGroup | None = None) -> DataCursor:
        """Return the cursor after `step` completed iterations, within a group or not."""
        documents = self._sampler.batch(step).sequences
        return DataCursor(
            fingerprint=self._data.fingerprint,
            next_batch=hashlib.sha256(documents.astype("<i8").tobytes()).hexdigest(),
            group=group,
            **batch_settings(self._config),
        )
