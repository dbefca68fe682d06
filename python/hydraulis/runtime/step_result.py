"""What an iteration came to, brought together from all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch.distributed as dist

from hydraulis._core import Plan, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one iteration came to.

    Attributes:
        loss: the mean over the target tokens of the global batch, the same on every rank.
        timelines: each replica's measured timeline, on rank 0; empty elsewhere.
        memory_bytes: the most that any rank held, on rank 0 (see `IterationMemory`); 0 elsewhere.
        peak_bytes: the most that each rank held, with what micro-batches keep, on rank 0; None of ranks of
            which that was not counted.
        is_counted: whether some rank counted what micro-batches keep, which takes a part of the time of its
            computations; on rank 0.
        transfer_ms: that this rank did nothing but transfers (see `IterationTimes`).
        groups_ms: time on the wall of making the process groups that no plan before had used.
    """

    loss: float
    timelines: Sequence[Sequence[Span]]
    memory_bytes: int
    peak_bytes: tuple[int | None, ...]
    is_counted: bool
    transfer_ms: float
    groups_ms: float

    @property
    def replica_ms(self) -> tuple[float, ...]:
        """When each replica ended, in the clock's time: its instruction list with the measured durations."""
        return tuple(max((span.end_ms for span in timeline), default=0.0) for timeline in self.timelines)

    @property
    def measured_ms(self) -> float:
        """When the last of them ended."""
        return max(self.replica_ms, default=0.0)


class RankReport(NamedTuple):
    """What one rank tells of an iteration.

    Attributes:
        computed_ms: of each forward and backward, in running order.
        memory_bytes: the most that it held.
        peak_bytes: the same with what micro-batches kept, where that was counted.
        is_counted: whether it was counted while they ran.
    """

    computed_ms: list[float]
    memory_bytes: int
    peak_bytes: int | None
    is_counted: bool


def gathered(report: RankReport) -> list[RankReport]:
    """Bring the reports of all ranks together on rank 0; elsewhere give none. Collective."""
    by_rank: list[RankReport] | None = None
    if dist.get_rank() == 0:
        by_rank = [report] * dist.get_world_size()
    dist.gather_object(report, by_rank)
    return by_rank or []


def measured_timelines(plan: Plan, by_rank: Sequence[RankReport]) -> Sequence[Sequence[Span]]:
    """Lay the computations of all ranks out in time, as their lists order them."""
    durations = [report.computed_ms for report in by_rank]
    return plan.measured_timeline(_by_stage(plan, durations)) if durations else []


def _by_stage(plan: Plan, durations: list[list[float]]) -> list[list[list[float]]]:
    """Arrange each rank's durations by replica and stage; a stage is as slow as its slowest rank."""
    return [
        [
            [max(times) for times in zip(*(durations[rank] for rank in ranks), strict=True)]
            for ranks in replica.stages
        ]
        for replica in plan.replicas
    ]
