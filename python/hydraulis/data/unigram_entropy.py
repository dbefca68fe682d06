"""The entropy of the targets' frequencies: the loss of the best model without context."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hydraulis.data.tokens import MaskedTokens, SequenceTokens, Tokens

# Limits of the sample, in which each source has its share.
_MAX_TOKENS, _MAX_SEQUENCES = 1 << 24, 1 << 16


class Sequences(Protocol):
    """Sequences of several sources; see `Dataset`."""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each sequence, int64 [n]."""

    @property
    def target_counts(self) -> npt.NDArray[np.int64]:
        """Number of targets of each sequence, int64 [n]."""

    @property
    def source_bounds(self) -> npt.NDArray[np.int64]:
        """First sequence of each source, and the number of sequences, int64 [sources + 1]."""

    @property
    def weights(self) -> Sequence[float] | None:
        """Share of each source in the tokens of an epoch; None if each sequence occurs once per epoch."""

    def read(self, index: int, /) -> SequenceTokens:
        """Return the tokens of one sequence."""


def compute_unigram_entropy(data: Sequences) -> float:
    """Compute the entropy of the targets of an epoch in nats, from evenly spread sequences of each source."""
    ranges = list(pairwise(data.source_bounds.tolist()))
    shares: dict[int, float] = {}
    for number, (first, stop) in enumerate(ranges):
        targets = float(data.target_counts[first:stop].sum())
        weight = targets
        if data.weights is not None:
            weight = data.weights[number] * targets / float(data.lengths[first:stop].sum())
        values, counts = np.unique(_sampled_targets(data, first, stop, len(ranges)), return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            shares[value] = shares.get(value, 0.0) + weight * count / counts.sum()
    share = np.array(list(shares.values()))
    share /= share.sum()
    return float(-(share * np.log(share)).sum())


def _sampled_targets(data: Sequences, first: int, stop: int, num_sources: int) -> Tokens:
    """Return the targets of evenly spread sequences of one source."""
    by_tokens = (stop - first) * (_MAX_TOKENS // num_sources) // int(data.lengths[first:stop].sum())
    number = max(1, min(stop - first, by_tokens, _MAX_SEQUENCES // num_sources))
    chosen = np.linspace(first, stop - 1, number).astype(np.int64)
    return np.concatenate([_targets(data.read(int(index))) for index in chosen])


def _targets(sequence: SequenceTokens) -> Tokens:
    if isinstance(sequence, MaskedTokens):
        return sequence.tokens[1:][sequence.loss_mask[1:]]
    return sequence[1:]
