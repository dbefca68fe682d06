"""Where a run stands in its data."""

import hashlib

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
from hydraulis.data.open import sampler_for
from hydraulis.runtime.checkpoint.manifest import DataCursor


class DataPosition:
    """Tells which batches come next, at any step.

    Args:
        config: of the run.
        data: that is trained on.
    """

    def __init__(self, config: RunConfig, data: Dataset) -> None:
        self._config = config
        self._data = data
        self._sampler = sampler_for(config.data, data, config.train.seed, config.train.epochs)

    def cursor(self, step: int) -> DataCursor:
        """Give the cursor after so many completed iterations."""
        documents = self._sampler.batch(step).documents
        return DataCursor(
            fingerprint=self._data.fingerprint,
            seed=self._config.train.seed,
            tokens_per_batch=self._config.data.tokens_per_batch,
            sequences_per_batch=self._config.data.sequences_per_batch,
            epoch_end=self._config.data.epoch_end,
            max_tokens=self._config.data.max_tokens,
            next_batch=hashlib.sha256(documents.astype("<i8").tobytes()).hexdigest(),
        )
