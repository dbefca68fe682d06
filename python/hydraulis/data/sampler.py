"""Which documents make the global batch of a step.

The documents form an endless stream: one permutation per epoch, one epoch after the other. A batch takes
them from the stream until its token budget is reached; the last one is kept whole, and the next batch goes
on behind it. So nothing is dropped, each document comes once per epoch, and a batch may hold the end of an
epoch and the start of the next.

Batch i depends on the lengths, the budget, the seed and i alone. Steps may be asked for in any order: the
first question about a late step walks there once, at about 5 microseconds per step; what it learns is kept.
A sampler belongs to one thread; another one with the same arguments gives the same batches. Permutations
are those of NumPy's default generator, which a new NumPy version may change.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hydraulis.errors import InvalidInputError

Documents = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch:
    """The documents of one step.

    Attributes:
        step: the iteration the batch is for.
        epoch: the epoch of its first document.
        documents: indices into the corpus, in the order of the stream. In a batch that crosses into the
            next epoch a document can occur twice, so it is the place in this array that names a sequence.
    """

    step: int
    epoch: int
    documents: Documents


@dataclass(frozen=True, slots=True)
class _Position:
    """A place in the stream: the document at `index` of an epoch's permutation."""

    epoch: int
    index: int


class BatchSampler:
    """Gives the global batch of any step.

    Args:
        lengths: the number of tokens of each document.
        tokens_per_batch: the budget: a batch is complete with the document that reaches it.
        seed: fixes the permutations.

    Raises:
        InvalidInputError: there is no document, one of them is empty, the budget is less than 1, or the
            seed is negative (code `sampler_input`).
    """

    def __init__(self, lengths: npt.NDArray[np.int64], tokens_per_batch: int, seed: int) -> None:
        _check(lengths, tokens_per_batch, seed)
        self._lengths = lengths
        self._tokens_per_batch = tokens_per_batch
        self._seed = seed
        self._starts = [_Position(epoch=0, index=0)]
        # Two epochs, so that a step at the border and those around it do not make them anew.
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def batch(self, step: int) -> GlobalBatch:
        """Return the global batch of a step.

        Raises:
            InvalidInputError: the step is negative (code `sampler_input`).
        """
        if step < 0:
            message = f"step = {step} must be at least 0; count steps from 0"
            raise InvalidInputError(message, code="sampler_input")
        while len(self._starts) <= step:
            self._starts.append(self._take(self._starts[-1])[1])
        start = self._starts[step]
        documents, _ = self._take(start)
        return GlobalBatch(step=step, epoch=start.epoch, documents=documents)

    def _take(self, start: _Position) -> tuple[Documents, _Position]:
        """Take documents from `start` on until the budget is reached; also return where the next start."""
        pieces = []
        epoch, first, missing = start.epoch, start.index, self._tokens_per_batch
        while missing > 0:
            order, tokens_before = self._epoch(epoch)
            reached = int(np.searchsorted(tokens_before, tokens_before[first] + missing))
            stop = min(reached, len(order))
            pieces.append(order[first:stop])
            missing -= int(tokens_before[stop] - tokens_before[first])
            epoch, first = (epoch, stop) if stop < len(order) else (epoch + 1, 0)
        return np.concatenate(pieces), _Position(epoch, first)

    def _make_epoch(self, epoch: int) -> tuple[Documents, npt.NDArray[np.int64]]:
        """Return an epoch's permutation, and how many tokens come before each place in it and its end."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._lengths))
        return order, np.concatenate(([0], np.cumsum(self._lengths[order])))


def _check(lengths: npt.NDArray[np.int64], tokens_per_batch: int, seed: int) -> None:
    if len(lengths) == 0:
        message = "lengths holds 0 documents and must hold at least 1; check where the documents come from"
        raise InvalidInputError(message, code="sampler_input")
    shortest = int(np.argmin(lengths))
    if lengths[shortest] < 1:
        message = f"document {shortest} has {lengths[shortest]} tokens and must have at least 1; leave it out"
        raise InvalidInputError(message, code="sampler_input")
    if tokens_per_batch < 1:
        message = f"tokens_per_batch = {tokens_per_batch} must be at least 1; raise it"
        raise InvalidInputError(message, code="sampler_input")
    if seed < 0:
        message = f"seed = {seed} must be at least 0; choose another"
        raise InvalidInputError(message, code="sampler_input")
