"""The sequences of an evaluation, source by source, in batches that never change."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hydraulis.config.data import DataConfig
from hydraulis.data.corpus import Corpus
from hydraulis.data.dataset import Dataset, Integers, SequenceSource
from hydraulis.data.sampling.run_sampler import batch_budget
from hydraulis.data.sampling.sampler import batches_in_order


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EvaluatedSource:
    """The evaluated sequences of one source.

    Attributes:
        source: Index of the source in the configuration.
        share: Share of the source in the mean loss, relative to the other sources.
        batches: Sequences of each batch.
    """

    source: int
    share: float
    batches: Sequence[Integers]


def fingerprint_evaluated(data: Dataset | Corpus, max_sequences: int | None = None) -> str:
    """Return a SHA-256 of the evaluated sequences: losses compare only where it is the same.

    Args:
        data: Sequences for evaluation.
        max_sequences: Most sequences of each source; None for all.
    """
    bounds = data.source_bounds if isinstance(data, Dataset) else np.array([0, len(data.lengths)])
    sizes = [min(size, max_sequences or size) for size in np.diff(bounds).tolist()]
    return hashlib.sha256(json.dumps([data.fingerprint, sizes]).encode()).hexdigest()


def make_evaluation_batches(
    config: DataConfig, data: SequenceSource, max_sequences: int | None = None
) -> list[EvaluatedSource]:
    """Choose the sequences to evaluate, and divide them into batches of training's size.

    A source's share in the mean loss is its number of targets; with weights, its number of targets among as
    many tokens as its weight gives it, as in training.

    Args:
        config: Section `data`.
        data: Sequences for evaluation.
        max_sequences: Most sequences of each source, evenly spread over it; None for all.
    """
    numbers, bounds, weights = [0], [0, len(data.lengths)], None
    if isinstance(data, Dataset):
        numbers, bounds, weights = sorted(set(data.sources)), data.source_bounds.tolist(), data.weights
    sources = []
    for place, (first, stop) in enumerate(pairwise(bounds)):
        chosen = np.arange(first, stop)
        if max_sequences is not None and max_sequences < len(chosen):
            chosen = np.linspace(first, stop - 1, max_sequences).astype(np.int64)
        share = float(data.target_counts[first:stop].sum())
        if weights is not None:
            share *= weights[place] / float(data.lengths[first:stop].sum())
        batches = batches_in_order(*batch_budget(config, data.lengths[chosen]))
        sources.append(
            EvaluatedSource(
                source=numbers[place], share=share, batches=[chosen[indices] for indices in batches]
            )
        )
    return sources
