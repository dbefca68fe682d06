"""Result of one training step, with the measurements of all ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from hydraulis._core import Plan, Span
from hydraulis.runtime.ranks import host
from hydraulis.runtime.state.sharded_optimizer import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasurement:
    """Times and memory of one step; the ranks' measurements are on rank 0, and empty or 0 elsewhere.

    Attributes:
        timelines: Measured timeline of each replica.
        computed_ms: Computation time of each rank; None for a rank that counted its saved activations.
        memory_bytes: Most bytes of any rank (see `IterationMemory`).
        peak_bytes: Most bytes of each rank, with the activations saved for backward; None for a rank that did
            not count them.
        is_counted: Whether some rank counted its saved activations, which slows its computations.
        transfer_ms: Time in which this rank only transferred (see `StepTimes`).
        groups_ms: Wall time of creating the process groups that no earlier plan used.
        crossings: Exchanges between nodes of each rank's parameter gather.
    """

    timelines: Sequence[Sequence[Span]]
    computed_ms: tuple[float | None, ...]
    memory_bytes: int
    peak_bytes: tuple[int | None, ...]
    is_counted: bool
    transfer_ms: float
    groups_ms: float
    crossings: "tuple[TimedCrossing, ...]"

    @property
    def replica_ms(self) -> tuple[float, ...]:
        """Time at which each replica ended: its instruction list with the measured durations."""
        return tuple(max((span.end_ms for span in timeline), default=0.0) for timeline in self.timelines)

    @property
    def slowest_ms(self) -> float:
        """Time at which the last replica ended."""
        return max(self.replica_ms, default=0.0)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one training step.

    Attributes:
        loss: Mean loss over the target tokens of the global batch, the same on every rank.
        update: Gradient norm and learning rate of the optimizer step.
        measured: Times and memory of the step, without the optimizer step.
        jump: Description of a jump of the loss or the gradient norm; None without one.
    """

    loss: float
    update: Update
    measured: StepMeasurement
    jump: str | None = None


class TimedCrossing(NamedTuple):
    """A rank's exchanges between nodes in one parameter gather, with their time.

    Attributes:
        ms: Time from their start to their end.
        bytes: Bytes that the rank sends or receives, the larger of both (see `Crossing`).
        messages: Messages that it sends.
    """

    ms: float
    bytes: int
    messages: int


class RankReport(NamedTuple):
    """Measurements of one rank in one step.

    Attributes:
        computed_ms: Time of each forward and backward, in running order.
        memory_bytes: Most bytes of the rank.
        peak_bytes: Most bytes with the activations saved for backward; None if they were not counted.
        is_counted: Whether they were counted while they ran.
        crossing: Exchanges between nodes of the parameter gather.
    """

    computed_ms: list[float]
    memory_bytes: int
    peak_bytes: int | None
    is_counted: bool
    crossing: TimedCrossing

    def to_row(self, width: int) -> Tensor:
        """Write the report as `width` numbers, float64: `NUMBERS` and the times, and zeros."""
        peak = -1 if self.peak_bytes is None else self.peak_bytes
        row = torch.zeros(width, dtype=torch.float64)
        counts = [self.memory_bytes, peak, self.is_counted, *self.crossing, len(self.computed_ms)]
        numbers = [*counts, *self.computed_ms]
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        return row

    @classmethod
    def from_row(cls, row: Sequence[float]) -> Self:
        """Read a report from the numbers of `to_row`."""
        memory, peak, is_counted, ms, sent, messages, computed, *times = row
        return cls(
            times[: int(computed)],
            int(memory),
            None if peak < 0 else int(peak),
            bool(is_counted),
            TimedCrossing(ms, int(sent), int(messages)),
        )


# The times have their count in a row, and the crossing each of its fields.
NUMBERS = len(RankReport._fields) - 1 + len(TimedCrossing._fields)
"""Numbers of a `RankReport` in addition to its times."""


def gather_reports(plan: Plan, report: RankReport) -> list[RankReport]:
    """Gather the reports of all ranks on rank 0, by rank; empty on other ranks. Collective.

    Args:
        plan: Plan of the step, whose longest replica sets the size of a report.
        report: Report of this rank.
    """
    most = int(np.diff(plan.replica_offsets).max(initial=0))
    rows = host.gather(report.to_row(NUMBERS + 2 * most))
    return [] if rows is None else list(map(RankReport.from_row, rows.tolist()))


def combine_reports(
    plan: Plan, by_rank: Sequence[RankReport], *, transfer_ms: float, groups_ms: float
) -> StepMeasurement:
    """Combine the reports of all ranks."""
    return StepMeasurement(
        timelines=_measured_timelines(plan, by_rank),
        computed_ms=tuple(None if one.is_counted else math.fsum(one.computed_ms) for one in by_rank),
        memory_bytes=max((one.memory_bytes for one in by_rank), default=0),
        peak_bytes=tuple(one.peak_bytes for one in by_rank),
        is_counted=any(one.is_counted for one in by_rank),
        transfer_ms=transfer_ms,
        groups_ms=groups_ms,
        crossings=tuple(one.crossing for one in by_rank),
    )


def _measured_timelines(plan: Plan, by_rank: Sequence[RankReport]) -> Sequence[Sequence[Span]]:
    """Place the computations of all ranks in time, in the order of their lists."""
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
