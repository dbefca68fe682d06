"""The micro-batches of one step for every rank, by `hydraulis.balance`.

A plan depends on the values of the step's items and the options alone. Every rank computes all of it, in a
few milliseconds, and takes its own part.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from hydraulis._core import Balance, BalanceOptions, balance
from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.epoch.order import Indices
from hydraulis.errors import InfeasibleError, InvalidInputError

Barrier = Literal["step", "micro_batch"]
Times = npt.NDArray[np.float64]

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepItems:
    """The items of one step: sequences, or groups of them.

    Attributes:
        numbers: Index of each item in the data set, int64 [n].
        tokens: Tokens of each item in a micro-batch, int64 [n].
        times: Time of each item, float64 [n]; None for the time of its tokens by the cost.
        extra_tokens: Tokens of each item that count against the cap on extra tokens, int64 [n]; None without
            it.
    """

    numbers: Indices
    tokens: Indices
    times: Times | None = None
    extra_tokens: Indices | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The micro-batches of one step.

    Attributes:
        micro_batches: Items of each micro-batch of each rank, by their index in the data set.
        time: Predicted time of the step in the cost's unit, with the fixed time of micro-batches.
        lower_bound: Time below which no plan of these items is, with the fixed time of micro-batches; proven.
    """

    micro_batches: list[list[Indices]]
    time: float
    lower_bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanner:
    """Plans the steps of a training loop.

    Attributes:
        ranks: Number of data-parallel ranks.
        cap_tokens: Most tokens of a micro-batch.
        cost: Time of a sequence. Its fixed time counts for every micro-batch.
        barrier: "micro_batch" if the ranks wait for each other in every micro-batch (FSDP, ZeRO-3), "step"
            if once a step (DDP, ZeRO-1).
        micro_batches: Number of micro-batches of every rank in every step; None for as few as possible.
        least_micro_batches: Least number of micro-batches of a rank.
        multiple_of: Divisor of every rank's number of micro-batches, as interleaved pipelines need it.
        equal_sequences: Whether the ranks' numbers of items differ by at most one.
        speeds: Speed of each rank in proportion to the others; None for equal speeds.
        cap_extra_tokens: Most extra tokens of a micro-batch; None without extra tokens.
        allow_empty: Whether a micro-batch may have no item. Without it, a step with too few items for its
            micro-batches is refused.

    Raises:
        InvalidInputError: An option is outside its range or contradicts another (code `argument_invalid`).
    """

    ranks: int
    cap_tokens: int
    cost: SequenceCost
    barrier: Barrier = "micro_batch"
    micro_batches: int | None = None
    least_micro_batches: int = 0
    multiple_of: int = 1
    equal_sequences: bool = False
    speeds: tuple[float, ...] | None = None
    cap_extra_tokens: int | None = None
    allow_empty: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.barrier, str):
            message = f"barrier is {self.barrier!r}: give 'step' or 'micro_batch'"
            raise InvalidInputError(message, code="argument_invalid")
        for name in ("ranks", "cap_tokens"):
            if getattr(self, name) < 1:
                message = f"{name} is {getattr(self, name)}: it must be at least 1; correct it"
                raise InvalidInputError(message, code="argument_invalid")
        # `balance` checks the other options; a step of one token takes microseconds.
        extra = None if self.cap_extra_tokens is None else np.zeros(1, dtype=np.int64)
        token = StepItems(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), extra_tokens=extra)
        self._balance(token, allow_empty=True)

    @property
    def speed(self) -> float:
        """The speed of all ranks together; of equal ranks their number."""
        return float(self.ranks if self.speeds is None else sum(self.speeds))

    @property
    def least_items(self) -> int:
        """Least number of items of a step, so that no micro-batch is empty; 0 if some may be."""
        if self.allow_empty:
            return 0
        least = -(-max(1, self.least_micro_batches) // self.multiple_of) * self.multiple_of
        return self.ranks * (self.micro_batches or least)

    def plan(self, items: StepItems) -> StepPlan:
        """Plan one step.

        Raises:
            InfeasibleError: An item is longer than a cap (code `sequence_too_long`), or the items do not fit
                or do not fill the micro-batches (`batch_unplaceable`).
        """
        if len(items.numbers) < self.least_items:
            message = (
                f"the step has {len(items.numbers)} sequences or groups, and {self.ranks} ranks need at "
                f"least {self.least_items} to fill their micro-batches: make the steps larger, pass "
                "drop_last=True if it is the last one, or allow_empty=True"
            )
            raise InfeasibleError(message, code="batch_unplaceable")
        balanced = self._balance(items, allow_empty=self.allow_empty)
        parts = np.split(items.numbers[balanced.sequences], balanced.micro_batch_offsets[1:-1])
        # A rank without micro-batches would not take part in the step's reduction.
        nothing = [_NOTHING] * self.multiple_of
        own = [parts[start:stop] or nothing for start, stop in pairwise(balanced.replica_offsets.tolist())]
        return StepPlan(own, balanced.iteration_ms, balanced.lower_bound_ms)

    def time_without_cap(self, items: StepItems) -> float:
        """Return the time of a step with micro-batches of any size and number, without their fixed time."""
        free = StepPlanner(
            ranks=self.ranks,
            cap_tokens=int(items.tokens.sum()),
            cost=replace(self.cost, fixed=0.0),
            barrier=self.barrier,
            speeds=self.speeds,
        )
        alone = replace(items, extra_tokens=None)
        return free._balance(alone, allow_empty=True).iteration_ms

    def time_of(self, works: list[list[float]]) -> float:
        """Return the time of a step from the time of each micro-batch of each rank at speed 1."""
        speeds = self.speeds or (1.0,) * self.ranks
        times = [[work / speed for work in rank] for rank, speed in zip(works, speeds, strict=True)]
        if self.barrier == "step":
            return max(map(sum, times))
        return float(sum(map(max, zip(*times, strict=True))))

    def _balance(self, items: StepItems, *, allow_empty: bool) -> Balance:
        has_times = items.times is not None
        return balance(
            items.tokens,
            replicas=self.ranks,
            cap_tokens=self.cap_tokens,
            barrier=self.barrier,
            linear_ms_per_token=0.0 if has_times else self.cost.linear,
            quadratic_ms_per_token2=0.0 if has_times else self.cost.quadratic,
            work_ms=items.times,
            extra_tokens=items.extra_tokens,
            options=BalanceOptions(
                micro_batches=self.micro_batches,
                least_micro_batches=self.least_micro_batches,
                multiple_of=self.multiple_of,
                equal_sequences=self.equal_sequences,
                fixed_ms=self.cost.fixed,
                speeds=self.speeds,
                cap_extra_tokens=self.cap_extra_tokens,
                allow_empty=allow_empty,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class BalancedStep:
    """One step of training.

    Attributes:
        epoch: Number of the epoch.
        index: Number of the step in the epoch.
        micro_batches: Sequences of each micro-batch of each rank, by their index in the data set.
        own: The micro-batches of the sampler's rank; those of all ranks in turn without a rank.
        tokens: Tokens of all ranks, without padding; those of a group's prefix once.
        targets: Target tokens of all ranks, the denominator of the mean loss.
        loss_weights: Factor of the mean loss of each micro-batch of `own`. Where gradients are added up over
            the micro-batches of a rank and averaged over the ranks, the weighted losses give the mean over
            `targets`. The mean loss of a micro-batch without targets is not a number; leave it out, or divide
            sums of losses by `targets`.
        time: Predicted time in the unit of the cost.
        lower_bound: Time that no plan under the options is below; proven.
    """

    epoch: int
    index: int
    micro_batches: list[list[Indices]]
    own: list[Indices]
    tokens: int
    targets: int
    loss_weights: list[float]
    time: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Relative distance to the bound: `time / lower_bound - 1`."""
        return self.time / self.lower_bound - 1 if self.lower_bound > 0 else 0.0
