"""The sequences of each global batch.

The epochs form an endless stream of sequences. A batch takes sequences from the stream until it reaches its
budget of tokens or sequences; it keeps its last sequence whole, and the next batch starts after it. A batch
may therefore span two epochs. With `epoch_end = "drop"`, the sequences at the end of an epoch that fill no
batch are dropped and counted. With a number of epochs, the stream ends after them, and its last batch may be
smaller.

Batch i depends only on the sizes, the budget, the order and i, so the state of a run's data is the number of
its batches. Batches may be requested in any order. The first request for a late batch walks through the
earlier ones, at about 5 microseconds each, and caches their starts. A sampler is not thread-safe; a second
one with the same arguments gives the same batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from hydraulis.data.sampling.epoch_order import SequenceIndices, Shuffle
from hydraulis.errors import InvalidInputError

# Epochs in one batch: more would take longer than a second to draw.
_MAX_EPOCHS = 30_000
# Steps to count, at about 5 microseconds each.
_MAX_STEPS = 10_000_000
# Sequences to shuffle for the count, at about 20 nanoseconds each; an epoch costs as much as 5,000 of them.
_MAX_SHUFFLED = 200_000_000
_EPOCH_SEQUENCES = 5_000
# Epochs that are counted at any size.
_COUNTED_EPOCHS = 1_000
# Epochs without a sequence that may follow each other.
_MAX_EMPTY = 100
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch:
    """The sequences of one iteration.

    Attributes:
        index: Number of the batch, counted from 0.
        epoch: Epoch of its first sequence.
        sequences: Indices in the data set, in the order of the stream, int64. A batch across two epochs may
            have an index twice, so a sequence of the batch is identified by its position in this array.
    """

    index: int
    epoch: int
    sequences: SequenceIndices


@dataclass(frozen=True, slots=True)
class _Position:
    """A position in the stream: an index in an epoch's order, and the sequences dropped before it."""

    epoch: int
    index: int
    dropped: int = 0


class BatchSampler:
    """Sampler of the stream's global batches.

    Args:
        sizes: Cost of each sequence in the budget: its tokens, or 1; int64 [n].
        per_batch: Budget of a batch, which ends with the sequence that reaches it.
        seed: Seed of the permutations.
        order: Function from an epoch to its sequences in order; None for all of them, shuffled.
        epoch_end: Treatment of the sequences at the end of an epoch that fill no batch.
        epochs: Number of epochs of the stream; None for no end.

    Attributes:
        per_batch: Budget of a batch.

    Raises:
        InvalidInputError: There is no sequence, a sequence is empty, the budget is less than 1 or more than
            30,000 epochs, or the seed is negative (code `argument_invalid`).
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
        if self.epochs_per_batch > _MAX_EPOCHS:
            message = (
                f"the budget of a batch is {per_batch:,}, some {self.epochs_per_batch:,.0f} times all "
                f"sequences together; the limit is {_MAX_EPOCHS:,} times; lower it, or add data"
            )
            raise InvalidInputError(message, code="argument_invalid")
        self._starts = [_Position(epoch=0, index=0)]
        # Two epochs, because a batch may span two.
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    @property
    def epochs_per_batch(self) -> float:
        """Approximate number of epochs in a batch, usually below 1."""
        budget = self.per_batch / int(self._sizes.sum())
        return budget if self._epochs is None else min(budget, self._epochs)

    def batch(self, index: int) -> GlobalBatch:
        """Return a global batch by its number, counted from 0; after the end of the stream it is empty.

        Raises:
            InvalidInputError: The index is negative, an epoch would be dropped whole, or 101 epochs have no
                sequence (code `argument_invalid`).
        """
        sequences, start, _ = self._take(self._start(index))
        return GlobalBatch(index=index, epoch=start.epoch, sequences=sequences)

    def num_dropped(self, index: int) -> int:
        """Count the sequences dropped at the ends of epochs before a batch; see `batch` for refusals."""
        _, start, _ = self._take(self._start(index))
        return start.dropped

    def num_steps(self, epochs: int) -> int:
        """Count the steps of a number of epochs: the batches that begin in them.

        Raises:
            InvalidInputError: There are more than 10,000,000, or so many epochs that the count would take
                longer than about ten seconds, or an epoch would be dropped whole (code `argument_invalid`).
        """
        about = epochs * int(self._sizes.sum()) // self.per_batch
        if about > _MAX_STEPS:
            message = (
                f"epochs = {epochs:,} are about {about:,} steps of these data; the limit is {_MAX_STEPS:,}; "
                "lower it, or set the length of the run by steps alone"
            )
            raise InvalidInputError(message, code="argument_invalid")
        most = max(_COUNTED_EPOCHS, _MAX_SHUFFLED // (len(self._sizes) + _EPOCH_SEQUENCES))
        if epochs > most:
            message = (
                f"epochs = {epochs:,} of {len(self._sizes):,} sequences are too many to count their steps; "
                f"the limit is {most:,}; lower it, or set the length of the run by steps alone"
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
        """Take sequences from `start` until the budget is reached.

        Returns:
            The sequences, the position of the first one, and the start of the next batch.
        """
        pieces = []
        epoch, first, missing = start.epoch, start.index, self.per_batch
        num_empty = 0
        while missing > 0 and epoch != self._epochs:
            order, before = self._epoch(epoch)
            num_empty = 0 if len(order) else num_empty + 1
            if num_empty > _MAX_EMPTY:
                raise _no_sequences(epoch)
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
        """Drop the rest of an epoch, and refuse to drop all of it."""
        if first == 0:
            message = (
                f"the budget of a batch is {self.per_batch}, and all {length} sequences of epoch {epoch} do "
                "not reach it, so every epoch would be dropped; lower the budget, or let epochs continue"
            )
            raise InvalidInputError(message, code="argument_invalid")
        return _Position(epoch + 1, 0, dropped + length - first)

    def _make_epoch(self, epoch: int) -> tuple[SequenceIndices, npt.NDArray[np.int64]]:
        """Return an epoch's order, and the cumulative cost before each of its positions and at its end."""
        order = self._order(epoch)
        return order, np.concatenate(([0], np.cumsum(self._sizes[order])))


def _no_sequences(epoch: int) -> InvalidInputError:
    message = (
        f"the {_MAX_EMPTY + 1} epochs up to epoch {epoch} have no sequence, so a batch would never be full; "
        "correct the weights of the sources, or the order"
    )
    return InvalidInputError(message, code="argument_invalid")


def batches_in_order(sizes: npt.NDArray[np.int64], per_batch: int) -> list[SequenceIndices]:
    """Divide all sequences into batches in their own order, for evaluation.

    Args:
        sizes: Cost of each sequence in the budget, int64 [n].
        per_batch: Budget of a batch, which ends with the sequence that reaches it; the last may be smaller.

    Raises:
        InvalidInputError: An argument is refused as by `BatchSampler`.
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
