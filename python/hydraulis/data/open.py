"""From the section `data` of a configuration to the training sequences and the held-out ones.

There are two steps, because only the first one writes: `prepare_sources` builds missing indexes, once;
`open_sources` maps them in every process that reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
from hydraulis.text.values import format_count

_VALIDATION = "data.validation"
Indices = npt.NDArray[np.int64]


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
        return max(int(one.lengths.max()) for one in self.both)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse tokens beyond the vocabulary in either data set; see `Dataset.check_vocabulary`."""
        for one in self.both:
            one.check_vocabulary(vocab_size)

    def describe_left_out(self) -> list[str]:
        """Describe the broken records, and for files of validation also the cut and left-out documents."""
        found = [self.train.describe_broken()]
        if self.held_out is not None and self.held_out.key == _VALIDATION:
            found += [f"{_VALIDATION}: {text}" for text in _describe_validation(self.held_out)]
        return [text for text in found if text]

    @property
    def both(self) -> list[Dataset]:
        """The training sequences and, if there are any, those for evaluation."""
        return [self.train] if self.held_out is None else [self.train, self.held_out]


def _describe_validation(data: Dataset) -> list[str]:
    counts = data.count_documents()
    untrained = counts["without_target"] + counts.get("documents_without_target", 0)
    texts = [data.describe_broken()]
    if counts["too_long"]:
        lost = counts["lost_tokens"]
        dropped = f", {format_count(lost, 'token')} dropped" if lost else ""
        texts.append(f"{format_count(counts['too_long'], 'document')} longer than data.max_tokens{dropped}")
    if untrained:
        texts.append(f"{format_count(untrained, 'document')} without a target left out")
    return [text for text in texts if text]


def open_sources(config: DataConfig, prepared: Sequence[PreparedSource]) -> Datasets:
    """Map prepared sources and make their sequences.

    Args:
        config: Section `data`.
        prepared: Its sources, those to evaluate on after those to train on.

    Raises:
        HydraulisError: A file is refused; see `open_index`, `open_token_file` and `slice_documents`.
    """
    number = len(config.sources)
    trained, validated = prepared[:number], prepared[number:]
    data = make_datasets(config, [_corpora(source) for source in trained], _weights(trained))
    if not config.validation:
        return data
    corpora = [_corpora(source) for source in validated]
    validation = _dataset(config, corpora, "validation", _weights(validated))
    return Datasets(train=data.train, held_out=validation)


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
    if not config.held_out:
        return Datasets(train=_dataset(config, by_source, "train", weights), held_out=None)
    halves = [
        half
        for number, source in enumerate(by_source)
        for half in _divide([len(corpus) for corpus in source], config, number)
    ]
    train = _dataset(config, by_source, "train", weights, [half[0] for half in halves])
    held_out = _dataset(config, by_source, "held out", weights, [half[1] for half in halves])
    if not held_out.corpora:
        message = (
            f"data.held_out = {config.held_out}: no held-out document has a target within data.max_tokens = "
            f"{config.max_tokens}, and a source of one document holds none out: add documents, raise either "
            "setting, or set data.held_out to 0"
        )
        raise InvalidInputError(message, code="corpus_empty")
    return Datasets(train=train, held_out=held_out)


def _dataset(
    config: DataConfig,
    by_source: Sequence[Sequence[Corpus]],
    use: Literal["train", "held out", "validation"],
    weights: Sequence[float] | None,
    documents: Sequence[Indices] | None = None,
) -> Dataset:
    """Make the sequences of one use from the documents, by default all, of each corpus."""
    corpora = [corpus for source in by_source for corpus in source]
    sources = [number for number, source in enumerate(by_source) for _ in source]
    chosen: Sequence[Indices | None] = documents or [None] * len(corpora)
    slices = [
        slice_documents(corpus, config.max_tokens, config.too_long, indices)
        for corpus, indices in zip(corpora, chosen, strict=True)
    ]
    # A source with a single document has nothing held out, and a small corpus may have none of the draw.
    used = [number for number, one in enumerate(slices) if use != "held out" or len(one.lengths)]
    used_sources = sorted({sources[number] for number in used})
    return Dataset(
        corpora=[corpora[number] for number in used],
        slices=[slices[number] for number in used],
        sources=[sources[number] for number in used],
        weights=None if weights is None else [weights[source] for source in used_sources],
        key=_VALIDATION if use == "validation" else "data.sources",
        settings=[use, config.max_tokens, config.too_long, config.held_out, config.held_out_seed],
    )


def _divide(sizes: Sequence[int], config: DataConfig, source: int) -> list[tuple[Indices, Indices]]:
    """Divide the documents of a source; return the indices of both parts in each of its corpora.

    Args:
        sizes: Documents of each corpus.
        config: Section `data`.
        source: Index of the source.
    """
    bounds = np.cumsum([0, *sizes])
    parts = held_out_documents(int(bounds[-1]), config.held_out, config.held_out_seed, source)
    by_part = [np.split(part, np.searchsorted(part, bounds[1:-1])) for part in parts]
    return [
        (trained - first, held_out - first)
        for first, trained, held_out in zip(bounds[:-1].tolist(), *by_part, strict=True)
    ]


def _weights(prepared: Sequence[PreparedSource]) -> list[float] | None:
    return [source.weight for source in prepared if source.weight is not None] or None


def _corpora(source: PreparedSource) -> list[Corpus]:
    corpora = [] if source.index is None else [open_index(Path(source.index))]
    return corpora + [open_token_file(Path(name)) for name in source.mapped]


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
