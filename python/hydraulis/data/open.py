"""From the section `data` of a configuration to the sequences that are trained on, and those held out.

It happens in two parts, because only the first one writes: `prepare` builds what indexes are missing, once;
`open_sources` maps them, in every process that reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.data.context_limit import cut_documents
from hydraulis.data.corpus import Corpus
from hydraulis.data.dataset import Dataset, SequenceSource
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import open_index
from hydraulis.data.index.job import IndexJob
from hydraulis.data.sampling.epoch_order import Mixture
from hydraulis.data.sampling.held_out import held_out_documents
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.data.sources.megatron import SUFFIXES, open_megatron
from hydraulis.data.sources.numpy_tokens import open_numpy_tokens
from hydraulis.data.sources.source_files import is_mapped, source_files
from hydraulis.errors import InvalidInputError

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSource:
    """Where the documents of one source are.

    Attributes:
        mapped: files with tokens, which are read as they are.
        index: the folder of the index of all other files; None if there are none.
        weight: of the source.
    """

    mapped: tuple[str, ...]
    index: str | None
    weight: float | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Data:
    """What a run reads.

    Attributes:
        train: the sequences that are trained on.
        held_out: those that are kept for evaluation; None if none are.
    """

    train: Dataset
    held_out: Dataset | None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of both."""
        return max(int(one.lengths.max()) for one in (self.train, self.held_out) if one is not None)


def prepare(config: DataConfig, progress: Progress = lambda _: None) -> list[PreparedSource]:
    """Find the files of every source, and build the indexes that are missing.

    Args:
        config: the section `data`.
        progress: called with the share that is done, from 0 to 1.

    Raises:
        HydraulisError: see `source_files` and `ensure_index`.
    """
    prepared = []
    for number, source in enumerate(config.sources):
        records, mapped = files_of(config, number)

        def share(done: float, before: int = number) -> None:
            progress((before + done) / len(config.sources))

        index = (
            ensure_index(
                index_job(config, source, records),
                Path(config.index_directory),
                config.index_processes,
                share,
            )
            if records
            else None
        )
        prepared.append(
            PreparedSource(
                mapped=tuple(map(str, mapped)),
                index=None if index is None else str(index),
                weight=source.weight,
            )
        )
    return prepared


def files_of(config: DataConfig, number: int) -> tuple[list[Path], list[Path]]:
    """Find the files of a source: those that hold records, and those that hold tokens, which are mapped.

    Raises:
        InvalidInputError: nothing bears a name (see `source_files`), or the files hold tokens and the source
            is of another format (code `config_value`).
    """
    source = config.sources[number]
    paths = source_files(source.files)
    records = [path for path in paths if not is_mapped(path)]
    mapped = [path for path in paths if is_mapped(path)]
    if mapped and source.format != "tokens":
        message = (
            f"data.sources[{number}].format = '{source.format}', and '{mapped[0]}' holds tokens: set the "
            'format to "tokens"'
        )
        raise InvalidInputError(message, code="config_value")
    return records, mapped


def open_sources(config: DataConfig, prepared: Sequence[PreparedSource]) -> Data:
    """Map what was prepared, and make sequences of it.

    Raises:
        HydraulisError: see `open_index`, `open_megatron`, `open_numpy_tokens` and `cut_documents`.
    """
    by_source = [_corpora(source) for source in prepared]
    weights = [source.weight for source in prepared if source.weight is not None]
    return make_data(config, by_source, weights or None)


def make_data(
    config: DataConfig, by_source: Sequence[Sequence[Corpus]], weights: Sequence[float] | None = None
) -> Data:
    """Hold documents out, and make sequences of all.

    Args:
        config: the section `data`.
        by_source: the corpora of each source.
        weights: by source.

    Raises:
        InvalidInputError: see `cut_documents` and `Dataset`.
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
        cuts = [
            cut_documents(corpus, config.max_tokens, config.too_long, documents)
            for corpus, documents in zip(corpora, chosen, strict=True)
        ]
        # A corpus of a single document is not divided, so that nothing of it is held out.
        used = [number for number, cut in enumerate(cuts) if which == "train" or len(cut.lengths)]
        return Dataset(
            corpora=[corpora[number] for number in used],
            cuts=[cuts[number] for number in used],
            sources=[sources[number] for number in used],
            weights=weights,
            settings=[which, config.max_tokens, config.too_long, config.held_out, config.held_out_seed],
        )

    held_out = dataset(kept, "held out") if config.held_out else None
    if held_out is not None and not held_out.corpora:
        message = (
            f"data.held_out = {config.held_out}: no document that is held out has a target within "
            f"data.max_tokens = {config.max_tokens}; raise either, or hold nothing out"
        )
        raise InvalidInputError(message, code="corpus_empty")
    return Data(train=dataset(trained, "train"), held_out=held_out)


def index_job(config: DataConfig, source: SourceConfig, records: Sequence[Path]) -> IndexJob:
    """Say what the index of a source is made of."""
    is_text = source.format != "tokens"
    return IndexJob(
        paths=tuple(records),
        format=source.format,
        fields=source.fields,
        # What is not used does not decide which index it is.
        tokenizer=config.tokenizer if is_text else "",
        chat_template=config.chat_template if source.format == "chat" else "",
        eos_token=config.eos_token if is_text else "",
        broken=config.broken,
    )


def _corpora(source: PreparedSource) -> list[Corpus]:
    corpora = [] if source.index is None else [open_index(Path(source.index))]
    for name in source.mapped:
        path = Path(name)
        corpora.append(open_megatron(path) if path.suffix in SUFFIXES else open_numpy_tokens(path))
    return corpora


def sampler_for(
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
    sizes, per_batch = budget(config, lengths)
    return BatchSampler(sizes, per_batch, seed, order=order, epoch_end=config.epoch_end, epochs=epochs)


def budget(config: DataConfig, lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return what each sequence takes of a batch's budget, and the budget."""
    if config.tokens_per_batch is not None:
        return lengths, config.tokens_per_batch
    assert config.sequences_per_batch is not None  # the configuration has one of the two
    return np.ones_like(lengths), config.sequences_per_batch
