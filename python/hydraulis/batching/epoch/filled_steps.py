"""Steps with as many sequences as fit into a fixed number of micro-batches.

Each step is the longest range of the epoch's order, up to a bisection, that fits into the micro-batches, so
every step has a plan. The sampler decides how many fit: by best-fit decreasing, which takes about a
microsecond per sequence of the epoch, or by a plan.
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
_NOTHING: Final = np.zeros(0, dtype=np.int64)

# Whether a step of these items has a plan.
Fits = Callable[[Indices], bool]


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
        starts = [0]
        ahead = _NOTHING
        is_full = True
        while starts[-1] < len(pool):
            ahead = self._extend(ahead, pool, order, starts[-1])
            count, is_full = self._longest_fit(ahead, pool, fits)
            starts.append(starts[-1] + count)
            ahead = ahead[count:]
        if self.drop_last and not is_full:
            starts.pop()
        elif not self.allow_empty:
            self._fill_last(starts, pool, order, fits)
        if self.count is not None:
            starts = self._split(starts, self.count, pool, order, fits)
        return StepRanges(np.array(starts, dtype=np.int64))

    def _split(
        self, starts: list[int], count: int, pool: SequencePool, order: EpochOrder, fits: Fits
    ) -> list[int]:
        """Halve the step with most sequences until the epoch has `count` steps."""
        least = 1 if self.allow_empty else self.micro_batches
        natural = len(starts) - 1
        while len(starts) - 1 < count:
            sizes = np.diff(starts)
            # Packing fewer sequences can take more windows.
            for step in np.argsort(-sizes, kind="stable"):
                first, stop = starts[step : step + 2]
                middle = (first + stop) // 2
                if middle - first < least:
                    continue
                if fits(pool.take(order, first, middle)) and fits(pool.take(order, middle, stop)):
                    starts.insert(int(step) + 1, middle)
                    break
            else:
                break
        if len(starts) - 1 != count:
            message = (
                f"steps_per_epoch is {count:,}, and an epoch of {natural:,} steps cannot have that many; "
                f"{'raise' if natural > count else 'lower'} it, or give sequences_per_step"
            )
            raise InfeasibleError(message, code="batch_unplaceable")
        return starts

    def _extend(self, ahead: Indices, pool: SequencePool, order: EpochOrder, start: int) -> Indices:
        """Read items of the order from `start` until a step cannot hold more."""
        room = self.cap_tokens * self.micro_batches
        while start + len(ahead) < len(pool) and pool.occupied(ahead).sum() <= room:
            place = start + len(ahead)
            ahead = np.concatenate([ahead, pool.take(order, place, min(place + _BLOCK, len(pool)))])
        return ahead

    def _longest_fit(self, ahead: Indices, pool: SequencePool, fits: Fits) -> tuple[int, bool]:
        """Count the first items of `ahead` that fit; and whether there are more than these."""
        tokens = np.cumsum(pool.occupied(ahead))
        most = int(np.searchsorted(tokens, self.cap_tokens * self.micro_batches, "right"))
        # One item for each micro-batch always fits.
        fitting = min(most, self.micro_batches)
        beyond = most + 1
        middle = most
        while beyond - fitting > 1:
            if fits(ahead[:middle]):
                fitting = middle
            else:
                beyond = middle
            middle = (fitting + beyond) // 2
        return fitting, fitting < len(ahead)

    def _fill_last(self, starts: list[int], pool: SequencePool, order: EpochOrder, fits: Fits) -> None:
        """Move sequences from earlier steps towards the last one until no micro-batch of it is empty.

        A step that would keep too few takes as many sequences as micro-batches, which always fit.
        """
        missing = self.micro_batches - (starts[-1] - starts[-2])
        for step in range(len(starts) - 2, -1, -1):
            first, stop = starts[step : step + 2]
            is_filled = stop - first >= self.micro_batches
            # Packing fewer sequences can take more windows.
            if is_filled and fits(pool.take(order, first, stop)):
                return
            if step:
                starts[step] = stop - self.micro_batches
        message = (
            f"the last step of the epoch lacks {missing} sequences to fill the {self.micro_batches} "
            "micro-batches of all ranks, and the steps before it have none to spare; pass drop_last=True, or "
            "allow_empty=True with a collator that takes an empty list"
        )
        raise InfeasibleError(message, code="batch_unplaceable")
