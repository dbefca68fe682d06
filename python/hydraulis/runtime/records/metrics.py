"""What is recorded of each iteration: one line of `metrics.jsonl`."""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from typing import Self

from hydraulis.config.layered.table import from_table


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One iteration in numbers; times are in milliseconds.

    Attributes:
        step: counted from 1: so many are done after it.
        loss: mean over the target tokens of the global batch, in nats.
        gradient_norm: over the whole model, before clipping.
        learning_rate: of the step.
        sequences: of the global batch.
        tokens: of the global batch, padding not counted.
        longest: tokens of the longest sequence.
        squares: the sum of all squared lengths, to which attention's work is proportional.
        strategy: as chosen for this batch.
        planned_ms: predicted time of the slowest replica, in the profile's unit; a profile measured by a run
            is in CPU time of one rank, or in the device's.
        lower_bound_ms: no plan over the same strategies is predicted to take less.
        measured_ms: time of the slowest replica: the plan's instruction lists with the time that each
            computation took, of the CPU or of the device. Neither transfers nor the optimizer are part of it.
        wall_ms: what the clock on the wall showed from the batch to the end of the optimizer's step, waiting
            included; keeping records is not.
        plan_ms: what planning took, on the wall.
        plan_wait_ms: what of it rank 0 waited for; the rest of it ran beside the iteration before.
        transfer_ms: what rank 0 did nothing but transfers for: on the CPU on the wall, waiting for parameters
            and gradients, packing and adding them up; on CUDA what its computation waited.
        groups_ms: what making process groups took that were not used before, on the wall.
        memory_bytes: the most that any rank held: on CUDA by the allocator, on the CPU what lasts, counted,
            without what micro-batches keep for backward.
        rank_planned_bytes: by rank, the most that it is predicted to hold; null of ranks without work, and
            where `rank_peak_bytes` is null of all ranks.
        rank_peak_bytes: by rank, the most that it held: on CUDA by the allocator; on the CPU counted, with
            what micro-batches keep for backward, and null in iterations in which that is not done (see
            `IterationMemory`).
        tokens_per_s: real tokens per second on the wall.
        mfu: the share of the devices' peak that the model's operations take on the wall (see
            `training_flops`); null where `output.peak_tflops` is absent.
        bubble: of the ranks' time until their own replica ends, the share that they wait for other stages.
        imbalance: the computation of the busiest rank over that of the mean rank; 1 at best.
        replica_planned_ms: predicted time of each replica, in the plan's order.
        replica_measured_ms: measured time of each replica; 0 for one without work.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    sequences: int
    tokens: int
    longest: int
    squares: int
    strategy: str
    planned_ms: float
    lower_bound_ms: float
    measured_ms: float
    wall_ms: float
    plan_ms: float
    plan_wait_ms: float
    transfer_ms: float
    groups_ms: float
    memory_bytes: int
    rank_planned_bytes: tuple[int | None, ...]
    rank_peak_bytes: tuple[int | None, ...]
    tokens_per_s: float
    mfu: float | None
    bubble: float
    imbalance: float
    replica_planned_ms: tuple[float, ...]
    replica_measured_ms: tuple[float, ...]

    @property
    def prediction_error(self) -> float | None:
        """How far the planned time is off the measured one, relative to it; None if nothing was measured."""
        return self.planned_ms / self.measured_ms - 1 if self.measured_ms else None

    @property
    def rank_memory(self) -> list[tuple[int, int]]:
        """The planned and the held bytes of each rank of which both are known."""
        pairs = zip(self.rank_planned_bytes, self.rank_peak_bytes, strict=True)
        return [(planned, held) for planned, held in pairs if planned is not None and held is not None]

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line of `metrics.jsonl`.

        Raises:
            ValueError: it is no JSON, or not these fields with values of their types.
        """
        return from_table(cls, json.loads(line), "metrics")

    def tracked(self) -> dict[str, float | str]:
        """Give what a service that follows runs is told, by name; what is not known is left out."""
        values: dict[str, float | str | None] = {
            "train/loss": self.loss,
            "train/gradient_norm": self.gradient_norm,
            "train/learning_rate": self.learning_rate,
            "speed/tokens_per_s": self.tokens_per_s,
            "speed/mfu": self.mfu,
            "speed/wall_ms": self.wall_ms,
            "speed/transfer_ms": self.transfer_ms,
            "speed/memory_bytes": float(self.memory_bytes),
            "plan/plan_ms": self.plan_ms,
            "plan/plan_wait_ms": self.plan_wait_ms,
            "plan/planned_ms": self.planned_ms,
            "plan/measured_ms": self.measured_ms,
            "plan/prediction_error": self.prediction_error,
            "plan/bubble": self.bubble,
            "plan/imbalance": self.imbalance,
            "plan/strategy": self.strategy,
            "batch/sequences": float(self.sequences),
            "batch/tokens": float(self.tokens),
            "batch/longest": float(self.longest),
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> str:
        """Give the line, without its end."""
        return json.dumps(dataclasses.asdict(self))


def mean_tokens_per_s(steps: Sequence[StepMetrics]) -> float:
    """Give the speed of several iterations, at least one: their real tokens over their time on the wall."""
    return 1e3 * sum(one.tokens for one in steps) / sum(one.wall_ms for one in steps)


def mean_mfu(steps: Sequence[StepMetrics]) -> float | None:
    """Give the MFU of several iterations together, of those of which it is known; None if of none."""
    known = [(one.mfu, one.wall_ms) for one in steps if one.mfu is not None]
    if not known:
        return None
    return sum(mfu * wall_ms for mfu, wall_ms in known) / sum(wall_ms for _, wall_ms in known)


def median_prediction_error(steps: Sequence[StepMetrics]) -> float | None:
    """Give how far the planned time of the median iteration is off, of those measured; None if none was."""
    known = [abs(one.prediction_error) for one in steps if one.prediction_error is not None]
    return statistics.median(known) if known else None
