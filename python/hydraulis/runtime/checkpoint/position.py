"""Computes the position of a run in its data."""

import hashlib
from typing import Any

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
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
    """

    def __init__(self, config: RunConfig, data: Dataset) -> None:
        self._config = config
        self._data = data
        self._sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)

    def cursor(self, step: int) -> DataCursor:
        """Return the cursor after `step` completed iterations."""
        documents = self._sampler.batch(step).sequences
        return DataCursor(
            fingerprint=self._data.fingerprint,
            next_batch=hashlib.sha256(documents.astype("<i8").tobytes()).hexdigest(),
            **batch_settings(self._config),
        )
