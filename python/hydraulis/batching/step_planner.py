"""The micro-batches of one step for every rank: `balance`, with an exact number of micro-batches on request.

A plan depends on the lengths of the step and the options alone. Every rank computes all of it, in a few
milliseconds, and takes its own part.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from hydraulis._core import Balance, BalanceOptions, balance, pack_windows
from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.epoch.order import Indices
from hydraulis.batching.exact_count import arrange_bins, fill_empty
from hydraulis.batching.weighted import plan_weighted
from hydraulis.errors import InfeasibleError, InvalidInputError

Barrier = Literal["step", "micro_batch"]
Times = npt.NDArray[np.float64]
# The micro-batches of each rank: positions in the step.
MicroBatches = list[list[Indices]]

_NOTHING = np.zeros(0, dtype=np.int64)
_ALLOW_EMPTY = BalanceOptions(allow_empty=True)


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The micro-batches of one step.

    Attributes:
        micro_batches: Sequences of each micro-batch of each rank, by their index in the data set.
        time: Predicted time of the step in the cost's unit, with the fixed time of micro-batches.
        lower_bound: Time below which no plan of these sequences is, without the fixed time; proven.
    """

    micro_batches: list[list[Indices]]
    time: float
    lower_bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanner:
    """Plans the steps of a training loop with equal ranks.

    Attributes:
        ranks: Number of data-parallel ranks.
        cap_tokens: Most tokens of a micro-batch.
        cost: Time of a sequence.
        barrier: "micro_batch" if the ranks wait for each other in every micro-batch (FSDP, ZeRO-3), "step"
            if once a step (DDP, ZeRO-1).
        micro_batches: Number of micro-batches of every rank in every step; None for as few as possible.
        multiple_of: Divisor of the number of micro-batches, which is then the same for every rank, as
            interleaved pipelines need it; None for any numbers. Without effect on a given `micro_batches`.
        allow_empty: Whether a micro-batch may have no sequence. Without it, a step with too few sequences
            for its micro-batches is refused.
    """

    ranks: int
    cap_tokens: int
    cost: SequenceCost
    barrier: Barrier = "micro_batch"
    micro_batches: int | None = None
    multiple_of: int | None = None
    allow_empty: bool = False

    def __post_init__(self) -> None:
        for name in ("ranks", "cap_tokens", "micro_batches", "multiple_of"):
            value = getattr(self, name)
            if value is not None and value < 1:
                message = f"{name} is {value}: it must be at least 1; correct it"
                raise InvalidInputError(message, code="argument_invalid")
        if self.barrier not in ("step", "micro_batch"):
            message = f"barrier is '{self.barrier}': give 'step' (DDP) or 'micro_batch' (FSDP)"
            raise InvalidInputError(message, code="argument_invalid")

    def plan(self, sequences: Indices, lengths: Indices, weights: Times | None = None) -> StepPlan:
        """Plan one step.

        Args:
            sequences: Index of each sequence in the data set, int64 [n].
            lengths: Tokens of each sequence, int64 [n].
            weights: Time of each sequence, float64 [n]; None for the time by the cost.

        Raises:
            InfeasibleError: A sequence is longer than the cap (code `sequence_too_long`), or the sequences
                do not fit or do not fill the micro-batches (`batch_unplaceable`).
        """
        if weights is not None:
            return self._plan_weighted(sequences, lengths, weights)
        times = self.cost.times(lengths)
        natural = self._balance(lengths, self.ranks, self.barrier)
        # A rank without micro-batches would not take part in the step's reduction.
        parts = [rank or [_NOTHING] for rank in _micro_batches(natural)]
        count = self.micro_batches
        if count is None and self.multiple_of is not None:
            count = -(-max(map(len, parts)) // self.multiple_of) * self.multiple_of
        if count is not None:
            parts = self._with_exact_count(parts, lengths, times, count)
        return self._finish(parts, sequences, times, natural.lower_bound_ms)

    def time_without_cap(self, lengths: Indices, weights: Times | None = None) -> float:
        """Return the time of a step whose micro-batches have any size and number.

        Args:
            lengths: Tokens of each sequence, int64 [n].
            weights: Time of each sequence, float64 [n]; None for the time by the cost.
        """
        tokens = int(lengths.sum())
        free = replace(self, cap_tokens=tokens, micro_batches=None, multiple_of=None, allow_empty=True)
        if weights is None:
            return free._balance(lengths, self.ranks, self.barrier).iteration_ms
        fixed = self.cost.fixed
        return free._plan_weighted(np.arange(len(lengths)), lengths, weights).time - fixed

    def _plan_weighted(self, sequences: Indices, lengths: Indices, weights: Times) -> StepPlan:
        parts = plan_weighted(
            lengths,
            weights,
            ranks=self.ranks,
            cap_tokens=self.cap_tokens,
            count=self.micro_batches,
            multiple_of=self.multiple_of or 1,
            by_slot=self.barrier == "micro_batch",
        )
        bound = max(float(weights.sum()) / self.ranks, float(weights.max()))
        return self._finish(parts, sequences, weights, bound)

    def _finish(self, parts: MicroBatches, sequences: Indices, times: Times, bound: float) -> StepPlan:
        if not self.allow_empty:
            parts = self._without_empty(parts, times)
        time = self._time(parts, times, self.cost.fixed)
        return StepPlan([[sequences[part] for part in rank] for rank in parts], time, bound)

    def _time(self, parts: MicroBatches, times: Times, fixed: float = 0.0) -> float:
        return total_time(
            [[float(times[part].sum()) + fixed for part in rank] for rank in parts], self.barrier
        )

    def _balance(
        self, lengths: Indices, replicas: int, barrier: Barrier, options: BalanceOptions = _ALLOW_EMPTY
    ) -> Balance:
        return balance(
            lengths,
            replicas=replicas,
            cap_tokens=self.cap_tokens,
            linear_ms_per_token=self.cost.linear,
            quadratic_ms_per_token2=self.cost.quadratic,
            barrier=barrier,
            options=options,
        )

    def _with_exact_count(
        self, natural: MicroBatches, lengths: Indices, times: Times, count: int
    ) -> MicroBatches:
        """Balance into that many micro-batches; where that fails, pack as tightly as a filled step was."""
        if all(len(rank) == count for rank in natural):
            return natural
        options = BalanceOptions(micro_batches=count, allow_empty=self.allow_empty)
        try:
            return _micro_batches(self._balance(lengths, self.ranks, self.barrier, options))
        except InfeasibleError:
            windows = pack_windows(lengths, window_tokens=self.cap_tokens)
        if len(windows) <= self.ranks * count:
            bins = np.split(windows.sequences, windows.window_offsets[1:-1])
            bins += [_NOTHING] * (self.ranks * count - len(windows))
            return arrange_bins(bins, times, self.ranks, by_slot=self.barrier == "micro_batch")
        room = self.ranks * count * self.cap_tokens
        message = (
            f"a step has {len(lengths):,} sequences with {lengths.sum():,} tokens, and no packing was "
            f"found into {self.ranks} x {count} micro-batches with {room:,} tokens; make the step "
            "smaller, or raise micro_batches or cap_tokens"
        )
        raise InfeasibleError(message, code="batch_unplaceable")

    def _without_empty(self, parts: MicroBatches, times: Times) -> MicroBatches:
        sizes = [len(part) for rank in parts for part in rank]
        if all(sizes):
            return parts
        if sum(sizes) < len(sizes):
            message = (
                f"a step has {sum(sizes)} sequences for {len(sizes)} micro-batches of {self.ranks} ranks; "
                "make the step larger, or pass allow_empty=True with a collator that takes an empty list"
            )
            raise InfeasibleError(message, code="batch_unplaceable")
        return fill_empty(parts, times)


def _micro_batches(balanced: Balance) -> MicroBatches:
    sequences, bounds = balanced.sequences, balanced.micro_batch_offsets.tolist()
    parts = [sequences[start:stop] for start, stop in pairwise(bounds)]
    return [parts[start:stop] for start, stop in pairwise(balanced.replica_offsets.tolist())]


def total_time(times: list[list[float]], barrier: Barrier) -> float:
    """Return the time of a step.

    Args:
        times: Time of each micro-batch of each rank.
        barrier: Place where the ranks wait for each other.
    """
    if barrier == "step":
        return max(map(sum, times))
    return float(sum(map(max, zip(*times, strict=True))))
