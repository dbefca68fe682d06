"""The account of an epoch: the ideal time, the reached one, and where the difference goes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from hydraulis.batching.epoch.order import Indices
from hydraulis.batching.items.pool import SequencePool
from hydraulis.batching.step_planner import StepPlan, StepPlanner

# A sequence bounds its step if alone it takes longer than this multiple of the ideal.
_BOUNDING: Final = 1.01
_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class BoundingSequence:
    """A sequence that takes longer than the ideal time of its step.

    Attributes:
        step: Number of the step.
        sequence: Index in the data set; of a group, its first sequence.
        tokens: Tokens of the sequence or group.
        factor: Its time over the ideal time of the step: no plan that keeps sequences whole is below.
    """

    step: int
    sequence: int
    tokens: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceReport:
    """Times of the planned steps together, in the unit of the cost.

    `ideal` and the five losses add up to `reached`.

    Attributes:
        steps: Number of steps.
        sequences: Number of sequences.
        micro_batches: Number of micro-batches of all ranks.
        tokens: Tokens without padding.
        fill: Tokens over the caps of all micro-batches.
        ideal: Time with the work of the tokens evenly on all ranks.
        lower_bound: Time that no plan under the options is below that keeps sequences whole; proven.
        reached: Predicted time.
        lost_to_imbalance: Waiting of ranks for the slowest one, with micro-batches of any size.
        lost_to_cap: Further waiting because micro-batches have caps or an exact number, or ranks equal
            numbers of sequences.
        lost_to_padding: Work of the padding.
        lost_to_micro_batches: The fixed time of micro-batches.
        bounding: Sequences that take longer than the ideal of their step, largest factor first, at most ten.
    """

    steps: int
    sequences: int
    micro_batches: int
    tokens: int
    fill: float
    ideal: float
    lower_bound: float
    reached: float
    lost_to_imbalance: float
    lost_to_cap: float
    lost_to_padding: float
    lost_to_micro_batches: float
    bounding: tuple[BoundingSequence, ...]

    def __str__(self) -> str:
        """Describe the account in a line for each fact."""
        lines = [
            f"{self.steps:,} steps of {self.sequences:,} sequences with {self.tokens:,} tokens, in "
            f"{self.micro_batches:,} micro-batches, {self.fill:.1%} full",
            f"reached {self.reached / self.ideal:.3f}x of the ideal; no plan without splitting is below "
            f"{self.lower_bound / self.ideal:.3f}x",
        ]
        for name in ("imbalance", "cap", "padding", "micro_batches"):
            lost = getattr(self, f"lost_to_{name}")
            lines.append(f"lost to {name.replace('_', '-')}: {lost / self.reached:.1%}")
        lines += [
            f"step {one.step}: no plan without splitting is below {one.factor:.2f}x: "
            f"sequence {one.sequence} has {one.tokens:,} tokens"
            for one in self.bounding
        ]
        return "\n".join(lines)


def report_steps(
    plans: Iterable[tuple[Indices, StepPlan]], pool: SequencePool, planner: StepPlanner, pad_to: int
) -> BalanceReport:
    """Add up the account of planned steps.

    Args:
        plans: Sequences and plan of each step, from step 0; at least one.
        pool: Sequences of the epoch.
        planner: Planner of the steps.
        pad_to: Multiple to which each micro-batch is padded.
    """
    accounts = [_account(step, *plan, pool, planner, pad_to) for step, plan in enumerate(plans)]
    bounding = [one for account in accounts for one in account.bounding]
    bounding.sort(key=lambda one: (-one.factor, one.step))
    summed = (name for name in BalanceReport.__slots__ if name not in ("fill", "bounding"))
    sums = {name: sum(getattr(account, name) for account in accounts) for name in summed}
    fill = sums["tokens"] / (sums["micro_batches"] * planner.cap_tokens)
    return replace(accounts[0], **sums, fill=fill, bounding=tuple(bounding[:_LISTED]))


def _account(
    step: int, sequences: Indices, plan: StepPlan, pool: SequencePool, planner: StepPlanner, pad_to: int
) -> BalanceReport:
    cost, speed = planner.cost, planner.speed
    tokens = pool.tokens(sequences)
    times = pool.times(sequences, cost)
    work = float(times.sum()) / speed
    ideal = float(pool.times(sequences, cost, padded=False).sum()) / speed
    sizes = [[int(pool.occupied(part).sum()) for part in rank] for rank in plan.micro_batches]
    pads = sum(-size % pad_to for rank in sizes for size in rank) * cost.linear / speed
    totals = [[float(pool.times(part, cost).sum()) for part in rank] for rank in plan.micro_batches]
    reached = planner.time_of(totals)
    uncapped = min(reached, planner.time_without_cap(pool.step_items(sequences, cost)))
    longest = int(times.argmax())
    first = int(pool.expand(sequences[longest : longest + 1])[0])
    fastest = max(planner.speeds or (1.0,))
    bounding = BoundingSequence(step, first, int(tokens[longest]), times[longest] / fastest / work)
    return BalanceReport(
        steps=1,
        sequences=len(pool.expand(sequences)),
        micro_batches=sum(map(len, sizes)),
        tokens=int(tokens.sum()),
        fill=0.0,
        ideal=ideal,
        lower_bound=plan.lower_bound,
        reached=plan.time + pads,
        lost_to_imbalance=uncapped - work,
        lost_to_cap=reached - uncapped,
        lost_to_padding=work - ideal + pads,
        lost_to_micro_batches=plan.time - reached,
        bounding=(bounding,) if bounding.factor > _BOUNDING else (),
    )
