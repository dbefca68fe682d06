"""Which sequences make the global batch of a step.

They form an endless stream: the order of one epoch after that of the other. A batch takes them from the
stream until its budget of tokens, or of sequences, is reached; the last one is kept whole, and the next batch
goes on behind it. So nothing is dropped, and a batch may hold the end of an epoch and the start of the next;
unless the end of an epoch that does not fill a batch is to be dropped, which is then counted. Where the
number of epochs is given the stream ends with them, and its last batch may be a short one.

Batch i depends on the sizes, the budget, the order and i alone: the whole state of a run's data is how many
batches it has taken. They may be asked for in any order: the first question about a late one walks there
once, at about 5 microseconds for each before it; what it learns is kept. A sampler belongs to one thread;
another one with the same arguments gives the same batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from hydraulis.data.sampling.epoch_order import SequenceIndices, Shuffle
from hydraulis.errors import InvalidInputError

# In a batch: it would take a second to draw, and train nothing that fewer do not.
_MOST_EPOCHS = 30_000
# To count, at about 5 microseconds each.
_MOST_STEPS = 10_000_000
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch:
    """The sequences of one iteration.

    Attributes:
        index: its place among the batches of the stream, counted from 0.
        epoch: the epoch of its first sequence.
        sequences: places in the data set, in the order of the stream. In a batch that crosses into the next
            epoch one can occur twice, so it is the place in this array that names a sequence of the batch.
    """

    index: int
    epoch: int
    sequences: SequenceIndices


@dataclass(frozen=True, slots=True)
class _Position:
    """A place in the stream: the one at `index` of an epoch's order, and how many were dropped before."""

    epoch: int
    index: int
    dropped: int = 0


class BatchSampler:
    """Gives any global batch of the stream.

    Args:
        sizes: what each sequence takes of the budget: its tokens, or 1.
        per_batch: the budget: a batch is complete with the sequence that reaches it.
        seed: fixes the permutations.
        order: gives the sequences of an epoch in their order; all of them, shuffled, when None.
        epoch_end: what becomes of the end of an epoch that does not fill a batch.
        epochs: after how many of them the stream ends; never when None.

    Attributes:
        per_batch: the budget.

    Raises:
        InvalidInputError: there is no sequence, one of them is empty, the budget is less than 1, very many
            epochs or, where the end of an epoch is dropped, more than one, or the seed is negative (code
            `argument_invalid`).
    """

    def __init__(
        self,
        sizes: npt.NDArray[np.int64],
        per_batch: int,
        seed: int,
        *,
        order: Callable[[int], SequenceIndices] | None = None,
        epoch_end: Literal["continue", "drop"] = "continue",
        epochs: int | None = None,
    ) -> None:
        _check(sizes, per_batch, seed)
        self._sizes = sizes
        self.per_batch = per_batch
        self._order = Shuffle(len(sizes), seed) if order is None else order
        self._drops = epoch_end == "drop"
        self._epochs = epochs
        if self.epochs_per_batch > _MOST_EPOCHS:
            message = (
                f"the budget of a batch is {per_batch:,}, some {self.epochs_per_batch:,.0f} times all "
                f"sequences together; the limit is {_MOST_EPOCHS:,} times; lower it, or add data"
            )
            raise InvalidInputError(message, code="argument_invalid")
        self._starts = [_Position(epoch=0, index=0)]
        # Two epochs, so that a batch at the border and those around it do not make them anew.
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    @property
    def epochs_per_batch(self) -> float:
        """About how many epochs a batch holds; a share of one as a rule."""
        budget = self.per_batch / int(self._sizes.sum())
        return budget if self._epochs is None else min(budget, self._epochs)

    def batch(self, index: int) -> GlobalBatch:
        """Return a global batch, counted from 0; behind the end of the stream it is empty.

        Raises:
            InvalidInputError: the index is negative (code `argument_invalid`).
        """
        sequences, start, _ = self._take(self._start(index))
        return GlobalBatch(index=index, epoch=start.epoch, sequences=sequences)

    def num_dropped(self, index: int) -> int:
        """Count the sequences that were dropped at the ends of epochs before a batch."""
        _, start, _ = self._take(self._start(index))
        return start.dropped

    def num_steps(self, epochs: int) -> int:
        """Count the batches that begin in the first epochs: as many steps as go through the data so often.

        Raises:
            InvalidInputError: they are more than anybody waits for (code `argument_invalid`).
        """
        about = epochs * int(self._sizes.sum()) // self.per_batch
        if about > _MOST_STEPS:
            message = (
                f"epochs = {epochs:,} are about {about:,} steps of these data; the limit is {_MOST_STEPS:,}; "
                "lower it, or set the length of the run by steps alone"
            )
            raise InvalidInputError(message, code="argument_invalid")
        batches = 0
        while self._take(self._start(batches))[1].epoch < epochs:
            batches += 1
        return batches

    def _start(self, index: int) -> _Position:
        if index < 0:
            message = f"batch {index} must be at least 0; count batches from 0"
            raise InvalidInputError(message, code="argument_invalid")
        while len(self._starts) <= index:
            self._starts.append(self._take(self._starts[-1])[2])
        return self._starts[index]

    def _take(self, start: _Position) -> tuple[SequenceIndices, _Position, _Position]:
        """Take sequences from `start` on until the budget is reached.

        Returns:
            The sequences, where the first of them stands, and where the next batch starts.
        """
        pieces = []
        epoch, first, missing = start.epoch, start.index, self.per_batch
        while missing > 0 and epoch != self._epochs:
            order, before = self._epoch(epoch)
            reached = int(np.searchsorted(before, before[first] + missing))
            if self._drops and reached > len(order):
                start = self._next_epoch(epoch, first, len(order), start.dropped)
                epoch, first = start.epoch, 0
                continue
            stop = min(reached, len(order))
            pieces.append(order[first:stop])
            missing -= int(before[stop] - before[first])
            epoch, first = (epoch, stop) if stop < len(order) else (epoch + 1, 0)
        return np.concatenate(pieces or [_NOTHING]), start, _Position(epoch, first, start.dropped)

    def _next_epoch(self, epoch: int, first: int, length: int, dropped: int) -> _Position:
        """Drop what is left of an epoch, which must be its end and not all of it."""
        if first == 0:
            message = (
                f"the budget of a batch is {self.per_batch}, and all {length} sequences of epoch {epoch} do "
                "not reach it, so every epoch would be dropped; lower the budget, or let epochs continue"
            )
            raise InvalidInputError(message, code="argument_invalid")
        return _Position(epoch + 1, 0, dropped + length - first)

    def _make_epoch(self, epoch: int) -> tuple[SequenceIndices, npt.NDArray[np.int64]]:
        """Return an epoch's order, and how much of a budget comes before each place in it and its end."""
        order = self._order(epoch)
        return order, np.concatenate(([0], np.cumsum(self._sizes[order])))


def batches_in_order(sizes: npt.NDArray[np.int64], per_batch: int) -> list[SequenceIndices]:
    """Divide all sequences into batches once, in their own order: what evaluation goes through.

    Args:
        sizes: what each sequence takes of the budget.
        per_batch: the budget: a batch is complete with the sequence that reaches it; the last one may not be.

    Raises:
        InvalidInputError: as `BatchSampler`.
    """
    _check(sizes, per_batch, 0)
    before = np.concatenate(([0], np.cumsum(sizes)))
    batches = []
    first = 0
    while first < len(sizes):
        stop = min(int(np.searchsorted(before, before[first] + per_batch)), len(sizes))
        batches.append(np.arange(first, stop, dtype=np.int64))
        first = stop
    return batches


def _check(sizes: npt.NDArray[np.int64], per_batch: int, seed: int) -> None:
    if len(sizes) == 0:
        message = "sizes holds 0 sequences and must hold at least 1; check where the data comes from"
        raise InvalidInputError(message, code="argument_invalid")
    shortest = int(np.argmin(sizes))
    if sizes[shortest] < 1:
        message = f"sequence {shortest} has size {sizes[shortest]} and must have at least 1; leave it out"
        raise InvalidInputError(message, code="argument_invalid")
    if per_batch < 1:
        message = f"per_batch = {per_batch} must be at least 1; raise it"
        raise InvalidInputError(message, code="argument_invalid")
    if seed < 0:
        message = f"seed = {seed} must be at least 0; choose another"
        raise InvalidInputError(message, code="argument_invalid")
