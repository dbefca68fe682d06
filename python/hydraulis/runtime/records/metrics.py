"""The metrics of an iteration: one line of `metrics.jsonl`."""

import dataclasses
import json
import math
from typing import Self

from hydraulis.config.layered.table import from_table
from hydraulis.text.documents import parse_json


def shared_devices_note(ranks_per_device: int) -> str:
    """Return the mark of a run whose ranks shared devices; empty if each rank had its own."""
    if ranks_per_device == 1:
        return ""
    return f"up to {ranks_per_device} ranks shared a device: this run is a test, and its times mean nothing"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The metrics of one iteration; times are in milliseconds.

    Attributes:
        step: Number of the iteration, counted from 1.
        loss: Mean loss over the target tokens of the global batch, in nats.
        gradient_norm: Norm of the whole model's gradient before clipping.
        learning_rate: Learning rate of the step.
        sequences: Sequences of the global batch.
        tokens: Tokens of the global batch, without padding.
        longest: Tokens of the longest sequence.
        squares: Sum of the squared sequence lengths, which attention's work is proportional to.
        strategy: Strategy chosen for the batch.
        planned_ms: Predicted time of the slowest replica, in the profile's unit. A profile measured by a run
            is in CPU time of one rank, or in device time.
        lower_bound_ms: Lower bound on the predicted time of any plan over the same strategies.
        measured_ms: Measured time of the slowest replica: the plan's instruction lists with the CPU or device
            time of each computation. Transfers and the optimizer are excluded.
        wall_ms: Wall time from the batch to the end of the optimizer step, including waiting and excluding
            the writing of records.
        plan_ms: Wall time of planning.
        plan_wait_ms: Part of the planning time that rank 0 waited for; the rest overlapped the iteration
            before.
        transfer_ms: Exposed transfer time of rank 0. On the CPU, wall time of waiting for, packing and
            summing parameters and gradients; on CUDA, time that computation waited for transfers.
        groups_ms: Wall time of creating the process groups first used in this step.
        memory_bytes: Maximum resident memory of any rank: on CUDA the allocator's peak; on the CPU the
            counted persistent tensors, without the tensors saved for backward.
        rank_planned_bytes: Predicted peak memory by rank; null for ranks without work, and for all ranks if
            `rank_peak_bytes` is null for all.
        rank_peak_bytes: Measured peak memory by rank: on CUDA the allocator's peak and the memory outside it
            (see `outside_bytes`); on the CPU the counted tensors, including those saved for backward, and
            null in iterations without counting (see `IterationMemory`).
        tokens_per_s: Tokens per second of wall time, without padding.
        mfu: Share of the devices' peak used by the model's operations over wall time (see
            `training_flops`); null without `output.peak_tflops`.
        bubble: Share of the ranks' time, until the end of their own replica, spent waiting for other stages.
        imbalance: Computation time of the busiest rank over the mean of all ranks; 1 is perfect balance.
        replica_planned_ms: Predicted time of each replica, in the plan's order.
        replica_measured_ms: Measured time of each replica; 0 for a replica without work.
        ranks_per_device: Ranks that share one device. Above 1 the run is a test, and times mean nothing.
        rank_rates: Rate of each rank relative to its device's that the plan counts with; empty if no rank
            is slow.
        link_slowdowns: Time of each node's transfers to other nodes, relative to the usual one, that the plan
            counts with; empty if no links are slow.
        moved: Sequences that a lookahead moved here from other steps' batches.
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
    ranks_per_device: int
    rank_rates: tuple[float, ...]
    link_slowdowns: tuple[float, ...]
    moved: int

    @property
    def prediction_error(self) -> float | None:
        """Planned time over measured time, minus 1; None if no time was measured."""
        return self.planned_ms / self.measured_ms - 1 if self.measured_ms else None

    @property
    def rank_memory(self) -> list[tuple[int, int]]:
        """Planned and measured peak bytes of each rank that has both."""
        pairs = zip(self.rank_planned_bytes, self.rank_peak_bytes, strict=True)
        return [(planned, held) for planned, held in pairs if planned is not None and held is not None]

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line of `metrics.jsonl`.

        Raises:
            ValueError: The line is no JSON, or a field is missing, unknown, of another type or no number that
                a run records.
        """
        metrics = from_table(cls, parse_json(line), "metrics")
        values = (getattr(metrics, field.name) for field in dataclasses.fields(cls))
        numbers = [one for one in values if isinstance(one, float)]
        if (
            not all(map(math.isfinite, numbers))
            or min(metrics.step, metrics.wall_ms) <= 0
            or len(metrics.rank_planned_bytes) != len(metrics.rank_peak_bytes)
            or metrics.ranks_per_device < 1
            or not all(0 < rate < math.inf for rate in metrics.rank_rates)
            or not all(1 <= slowdown < math.inf for slowdown in metrics.link_slowdowns)
            or any(planned <= 0 or peak <= 0 for planned, peak in metrics.rank_memory)
        ):
            message = f"the metrics of step {metrics.step} have values that no run records"
            raise ValueError(message)
        return metrics

    def tracked(self) -> dict[str, float | str]:
        """Return the values for tracking services by name, without those that are None."""
        values: dict[str, float | str | None] = {
            "train/loss": self.loss,
            "train/gradient_norm": self.gradient_norm,
            "train/learning_rate": self.learning_rate,
            "speed/tokens_per_s": self.tokens_per_s,
            "speed/mfu": self.mfu,
            "speed/wall_ms": self.wall_ms,
            "speed/transfer_ms": self.transfer_ms,
            "speed/memory_bytes": float(self.memory_bytes),
            "speed/ranks_per_device": float(self.ranks_per_device) if self.ranks_per_device > 1 else None,
            "plan/plan_ms": self.plan_ms,
            "plan/plan_wait_ms": self.plan_wait_ms,
            "plan/planned_ms": self.planned_ms,
            "plan/measured_ms": self.measured_ms,
            "plan/prediction_error": self.prediction_error,
            "plan/bubble": self.bubble,
            "plan/imbalance": self.imbalance,
            "plan/strategy": self.strategy,
            "plan/moved": float(self.moved),
            "plan/slow_ranks": float(sum(rate < 1 for rate in self.rank_rates)),
            "plan/slow_links": float(sum(slowdown > 1 for slowdown in self.link_slowdowns)),
            "batch/sequences": float(self.sequences),
            "batch/tokens": float(self.tokens),
            "batch/longest": float(self.longest),
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> str:
        """Return the line as JSON, without a newline."""
        return json.dumps(dataclasses.asdict(self))
