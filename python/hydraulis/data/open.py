"""From the section `data` of a configuration to the training sequences and the held-out ones.

There are two steps, because only the first one writes: `prepare_sources` builds missing indexes, once;
`open_sources` maps them in every process that reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import DataConfig
from hydraulis.data.context_limit import slice_documents
from hydraulis.data.corpus import Corpus
from hydraulis.data.dataset import Dataset
from hydraulis.data.index.files import open_index
from hydraulis.data.sources.prepare import PreparedSource
from hydraulis.data.sources.token_files import open_token_file
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Datasets:
    """The data of a run.

    Attributes:
        train: Training sequences.
        held_out: Sequences for evaluation; None without any.
    """

    train: Dataset
    held_out: Dataset | None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence in both data sets."""
        return max(int(one.lengths.max()) for one in (self.train, self.held_out) if one is not None)


def open_sources(config: DataConfig, prepared: Sequence[PreparedSource]) -> Datasets:
    """Map prepared sources and make their sequences.

    Raises:
        HydraulisError: A file is refused; see `open_index`, `open_token_file` and `slice_documents`.
    """
    by_source = [_corpora(source) for source in prepared]
    weights = [source.weight for source in prepared if source.weight is not None]
    return make_datasets(config, by_source, weights or None)


def make_datasets(
    config: DataConfig, by_source: Sequence[Sequence[Corpus]], weights: Sequence[float] | None = None
) -> Datasets:
    """Divide the documents into training and held-out ones, and make sequences from both.

    Args:
        config: Section `data`.
        by_source: Corpora of each source.
        weights: Weight of each source; None without weights.

    Raises:
        InvalidInputError: Documents are refused; see `slice_documents` and `Dataset`.
    """
    corpora = [corpus for source in by_source for corpus in source]
    sources = [number for number, source in enumerate(by_source) for _ in source]
    trained: list[npt.NDArray[np.int64] | None] = [None] * len(corpora)
    kept: list[npt.NDArray[np.int64]] = []
    if config.held_out:
        halves = [
            held_out_documents(len(corpus), config.held_out, config.held_out_seed, number)
            for number, corpus in enumerate(corpora)
        ]
        trained, kept = [half[0] for half in halves], [half[1] for half in halves]

    def dataset(chosen: Sequence[npt.NDArray[np.int64] | None], which: str) -> Dataset:
        slices = [
            slice_documents(corpus, config.max_tokens, config.too_long, documents)
            for corpus, documents in zip(corpora, chosen, strict=True)
        ]
        # A corpus with a single document has nothing held out.
        used = [number for number, one in enumerate(slices) if which == "train" or len(one.lengths)]
        return Dataset(
            corpora=[corpora[number] for number in used],
            slices=[slices[number] for number in used],
            sources=[sources[number] for number in used],
            weights=weights,
            settings=[which, config.max_tokens, config.too_long, config.held_out, config.held_out_seed],
        )

    held_out = dataset(kept, "held out") if config.held_out else None
    if held_out is not None and not held_out.corpora:
        message = (
            f"data.held_out = {config.held_out}: no held-out document has a target within "
            f"data.max_tokens = {config.max_tokens}; raise either, or set data.held_out to 0"
        )
        raise InvalidInputError(message, code="corpus_empty")
    return Datasets(train=dataset(trained, "train"), held_out=held_out)


def _corpora(source: PreparedSource) -> list[Corpus]:
    corpora = [] if source.index is None else [open_index(Path(source.index))]
    return corpora + [open_token_file(Path(name)) for name in source.mapped]


Indices = npt.NDArray[np.int64]

# Added to the seed, so that no other permutation of as many documents is equal.
_PURPOSE = 0x48454C44


def held_out_documents(num_documents: int, share: float, seed: int, source: int) -> tuple[Indices, Indices]:
    """Divide the documents of a source into training and held-out ones.

    Whole documents are held out. With two documents or more, each part has at least one; a single document is
    used for training.

    Args:
        num_documents: Number of documents of the source.
        share: Share of the documents to hold out, above 0 and below 1.
        seed: Seed of the choice.
        source: Index of the source, so that equally large sources are divided differently.

    Returns:
        Indices of the training documents and of the held-out ones, each in rising order.
    """
    kept = min(max(1, round(share * num_documents)), num_documents - 1)
    order = np.random.default_rng([seed, _PURPOSE, source]).permutation(num_documents)
    return np.sort(order[kept:]), np.sort(order[:kept])
