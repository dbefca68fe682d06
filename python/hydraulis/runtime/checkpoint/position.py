"""Where a run stands in its data."""

import hashlib

from hydraulis.config.run import RunConfig
from hydraulis.data.corpus import Corpus
from hydraulis.data.sampler import BatchSampler
from hydraulis.runtime.checkpoint.manifest import DataCursor


class DataPosition:
    """Tells which batches come next, at any step.

    Args:
        config: of the run.
        corpus: of the run.
    """

    def __init__(self, config: RunConfig, corpus: Corpus) -> None:
        self._config = config
        self._corpus = corpus
        self._sampler = BatchSampler(corpus.lengths, config.data.tokens_per_batch, config.train.seed)

    def cursor(self, step: int) -> DataCursor:
        """Give the cursor after so many completed iterations."""
        documents = self._sampler.batch(step).documents
        return DataCursor(
            fingerprint=self._corpus.fingerprint,
            seed=self._config.train.seed,
            tokens_per_batch=self._config.data.tokens_per_batch,
            max_tokens=self._config.data.max_tokens,
            next_batch=hashlib.sha256(documents.astype("<i8").tobytes()).hexdigest(),
        )
