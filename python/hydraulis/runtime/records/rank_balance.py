"""How evenly the ranks of an iteration computed, by its measured timelines."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydraulis._core import Plan, Span


@dataclass(frozen=True, slots=True)
class RankBalance:
    """The computation of all ranks, as numbers without a unit.

    Attributes:
        bubble: of the time from the start to their own replica's end, the share that ranks with work wait for
            other stages.
        imbalance: the computation of the busiest rank over that of the mean one, ranks without work included;
            1 if all compute equally long.
    """

    bubble: float
    imbalance: float


def rank_balance(plan: Plan, timelines: Sequence[Sequence[Span]]) -> RankBalance:
    """Compare the ranks of an iteration; those of one stage count as long as its slowest.

    Args:
        plan: of the iteration.
        timelines: of its replicas, in the plan's order; none where they are not known, which gives zeros.
    """
    busy: list[tuple[float, int]] = []
    available = 0.0
    for replica, timeline in zip(plan.replicas, timelines, strict=False):
        available += max((span.end_ms for span in timeline), default=0.0) * replica.scheme.ranks
        for stage, ranks in enumerate(replica.stages):
            spans = [span.end_ms - span.start_ms for span in timeline if span.stage == stage]
            busy.append((sum(spans), len(ranks)))
    total = sum(ms * ranks for ms, ranks in busy)
    if total == 0.0:
        return RankBalance(0.0, 0.0)
    return RankBalance(
        bubble=1.0 - total / available,
        imbalance=max(ms for ms, _ in busy) * plan.cluster.gpus / total,
    )
