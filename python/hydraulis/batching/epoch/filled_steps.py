"""Steps with as many sequences as fit into a fixed number of micro-batches.

Each step is the longest range of the epoch's order, up to a bisection, that fits into the micro-batches, so
every step has a plan. The sampler decides how many fit: by best-fit decreasing, whose time grows with the
sequences of the epoch and not with the cap, or by a plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hydraulis.batching.epoch.order import EpochOrder, Indices
from hydraulis.batching.epoch.steps import StepRanges
from hydraulis.batching.items.pool import SequencePool
from hydraulis.errors import InfeasibleError

_BLOCK: Final = 1 << 16
# Most sequences more that a step takes from the one before it because fewer do not fit.
_TRIES: Final = 16
_NOTHING: Final = np.zeros(0, dtype=np.int64)

# Whether a step of these items has a plan.
Fits = Callable[[Indices], bool]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """An epoch to divide.

    Attributes:
        pool: Sequences of the epoch, none longer than the cap.
        order: Order of the epoch.
        fits: Whether a step of some items has a plan. As many items as micro-batches always have one.
    """

    pool: SequencePool
    order: EpochOrder
    fits: Fits

    def fits_between(self, first: int, stop: int) -> bool:
        """Tell whether a step of the items from position `first` to before `stop` has a plan."""
        return self.fits(self.pool.take(self.order, first, stop))


class _Ahead:
    """The next items of an epoch's order, with the tokens up to each, which are added up once a block.

    Args:
        epoch: Epoch with the order.
    """

    def __init__(self, epoch: _Epoch) -> None:
        self._pool = epoch.pool
        self._order = epoch.order
        self._items = _NOTHING
        # Tokens of the first items, from none of them to all, int64 [n + 1].
        self._reached = np.zeros(1, dtype=np.int64)
        self._place = 0
        self._num_read = 0

    def __len__(self) -> int:
        return len(self._items) - self._place

    def read(self, room: int) -> None:
        """Read blocks until there are more than `room` tokens, or to the end of the epoch."""
        while self._num_read < len(self._pool) and self._reached[-1] - self._reached[self._place] <= room:
            stop = min(self._num_read + _BLOCK, len(self._pool))
            block = self._pool.take(self._order, self._num_read, stop)
            self._items = np.concatenate([self._items[self._place :], block])
            self._reached = np.concatenate([[0], np.cumsum(self._pool.occupied(self._items))])
            self._place, self._num_read = 0, stop

    def count(self, room: int) -> int:
        """Count the first items that have at most `room` tokens together."""
        limit = self._reached[self._place] + room
        return int(np.searchsorted(self._reached, limit, "right")) - 1 - self._place

    def first(self, count: int) -> Indices:
        """Return the first items."""
        return self._items[self._place : self._place + count]

    def advance(self, count: int) -> None:
        """Leave the first items behind."""
        self._place += count


@dataclass(frozen=True, slots=True)
class FilledSteps:
    """The capacity of a step.

    Attributes:
        cap_tokens: Most tokens of a micro-batch.
        micro_batches: Micro-batches of all ranks in a step.
        drop_last: Whether the sequences after the last full step are dropped.
        allow_empty: Whether micro-batches of the last step may be empty.
        count: Number of steps of every epoch; None for as few as possible.
    """

    cap_tokens: int
    micro_batches: int
    drop_last: bool
    allow_empty: bool
    count: int | None = None

    def divide(self, pool: SequencePool, order: EpochOrder, fits: Fits) -> StepRanges:
        """Divide an epoch.

        Args:
            pool: Sequences of the epoch, none longer than the cap.
            order: Order of the epoch.
            fits: Whether a step of some items has a plan. As many items as micro-batches always have one.

        Raises:
            InfeasibleError: The last step has too few sequences to fill its micro-batches, and the steps
                before it too few to give some, or the epoch cannot have its number of steps (code
                `batch_unplaceable`).
        """
        epoch = _Epoch(pool, order, fits)
        starts = [0]
        ahead = _Ahead(epoch)
        is_full = True
        while starts[-1] < len(pool):
            ahead.read(self.cap_tokens * self.micro_batches)
            count, is_full = self._longest_fit(ahead, fits)
            starts.append(starts[-1] + count)
            ahead.advance(count)
        if self.drop_last and not is_full:
            starts = self._drop_last(starts, epoch)
        elif not self.allow_empty:
            starts = self._fill_last(starts, epoch)
        if self.count is not None:
            starts = self._split(starts, self.count, epoch)
        return StepRanges(np.array(starts, dtype=np.int64))

    @property
    def _least(self) -> int:
        """Least number of sequences of a step."""
        return 1 if self.allow_empty else self.micro_batches

    def _drop_last(self, starts: list[int], epoch: _Epoch) -> list[int]:
        """Drop the last step, unless the epoch lacks steps and can fill it."""
        if self.count is None or len(starts) - 1 > self.count:
            return starts[:-1]
        return self._fill(starts, len(starts) - 2, epoch) or starts[:-1]

    def _split(self, starts: list[int], count: int, epoch: _Epoch) -> list[int]:
        """Halve the step with most sequences, or add one of few, until the epoch has `count` steps."""
        natural = len(starts) - 1
        while len(starts) - 1 < count:
            more = self._halve(starts, epoch) or self._add(starts, epoch)
            if more is None:
                break
            starts = more
        reached = len(starts) - 1
        if reached != count:
            items = f"{starts[-1]:,} sequences or groups"
            reason = (
                f"{items} of an epoch take {natural:,} steps; raise it"
                if natural > count
                else f"{items} of an epoch fill at most {reached:,} steps of at least {self._least}; lower it"
            )
            message = f"steps_per_epoch is {count:,}, and {reason}, or give sequences_per_step"
            raise InfeasibleError(message, code="batch_unplaceable")
        return starts

    def _halve(self, starts: list[int], epoch: _Epoch) -> list[int] | None:
        """Halve the step with most sequences whose halves fit."""
        sizes = np.diff(starts)
        # Packing fewer sequences can take more windows.
        for step in np.argsort(-sizes, kind="stable"):
            first, stop = starts[step : step + 2]
            middle = (first + stop) // 2
            if middle - first < self._least:
                return None
            if epoch.fits_between(first, middle) and epoch.fits_between(middle, stop):
                return [*starts[: step + 1], middle, *starts[step + 1 :]]
        return None

    def _add(self, starts: list[int], epoch: _Epoch) -> list[int] | None:
        """Add a step after one with sequences to spare, which it takes from this and earlier ones."""
        for step in range(len(starts) - 2, -1, -1):
            if starts[step + 1] < (step + 2) * self._least:
                return None
            if starts[step + 1] - starts[step] > self._least:
                wider = [*starts[: step + 2], *starts[step + 1 :]]
                filled = self._fill(wider, step + 1, epoch)
                if filled:
                    return filled
        return None

    def _longest_fit(self, ahead: "_Ahead", fits: Fits) -> tuple[int, bool]:
        """Count the first items of `ahead` that fit; and whether there are more than these."""
        most = ahead.count(self.cap_tokens * self.micro_batches)
        # One item for each micro-batch always fits.
        fitting = min(most, self.micro_batches)
        beyond = most + 1
        middle = most
        while beyond - fitting > 1:
            if fits(ahead.first(middle)):
                fitting = middle
            else:
                beyond = middle
            middle = (fitting + beyond) // 2
        return fitting, fitting < len(ahead)

    def _fill_last(self, starts: list[int], epoch: _Epoch) -> list[int]:
        """Move sequences from earlier steps to the last one until no micro-batch of it is empty."""
        filled = self._fill(starts, len(starts) - 2, epoch)
        if filled is None:
            missing = self.micro_batches - (starts[-1] - starts[-2])
            message = (
                f"the last step of the epoch lacks {missing} sequences to fill the {self.micro_batches} "
                "micro-batches of all ranks, and the steps before it have none to spare; pass "
                "drop_last=True, or allow_empty=True with a collator that takes an empty list"
            )
            raise InfeasibleError(message, code="batch_unplaceable")
        return filled

    def _fill(self, starts: list[int], place: int, epoch: _Epoch) -> list[int] | None:
        """Move the starts of a step and of those before it back until each has enough sequences.

        A step takes as few sequences as it can. As many as micro-batches always fit.

        Returns:
            All starts; None where the steps before have none to spare, or a step would not fit.
        """
        starts = list(starts)
        for step in range(place, -1, -1):
            first, stop = starts[step : step + 2]
            latest = min(first, stop - self._least)
            earliest = max(step * self._least, latest - _TRIES)
            # Packing fewer sequences can take more windows, and more of them fewer.
            tried = range(latest, earliest - 1, -1)
            start = next((one for one in tried if epoch.fits_between(one, stop)), None)
            if start is None:
                return None
            if start == first:
                return starts
            starts[step] = start
        return starts
