"""The record of one iteration: its plan, its result and its metrics."""

from dataclasses import dataclass

from hydraulis._core import Plan
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.model.flops import Utilisation
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.planning.step_batches import StepBatch
from hydraulis.runtime.records.measured_times import rank_balance
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration of training.

    Attributes:
        plan: Plan of the batch.
        result: Result of the step.
        metrics: Metrics of the iteration.
        group: Batches that were planned together with this one.
        num_dropped: Sequences without a batch, at the ends of the epochs before the next batch.
        is_profiled: Whether torch's profiler recorded the step.
    """

    plan: Plan
    result: StepResult
    metrics: StepMetrics
    group: BatchGroup
    num_dropped: int = 0
    is_profiled: bool = False

    @property
    def is_slowed(self) -> bool:
        """Whether torch's profiler or another rank on the same device took part of each rank's time."""
        return self.is_profiled or self.metrics.ranks_per_device > 1

    @property
    def has_plain_times(self) -> bool:
        """Whether all times are those of training alone: none is slowed, and no rank counted its memory."""
        return not (self.is_slowed or self.result.measured.is_counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTimes:
    """Wall times of one iteration.

    Attributes:
        wall_ms: Time of the whole iteration.
        plan_ms: Time of planning, on rank 0.
        plan_wait_ms: Time that rank 0 waited for the plan.
    """

    wall_ms: float
    plan_ms: float
    plan_wait_ms: float


def step_metrics(
    taken: StepBatch,
    plan: Plan,
    result: StepResult,
    times: WallTimes,
    planner: RunPlanner,
    utilisation: Utilisation,
) -> StepMetrics:
    """Compute the metrics of one iteration.

    Args:
        taken: Batch of the step.
        plan: Plan of the batch.
        result: Result of the step.
        times: Wall times of the iteration.
        planner: Planner that made the plan; asked for its memory where the measured peaks are, on rank 0.
        utilisation: Model FLOP utilisation of the run.
    """
    measured, balance = result.measured, rank_balance(plan, result.measured.timelines)
    tokens, squares = int(plan.lengths.sum()), int((plan.lengths**2).sum())
    # Only rank 0 has the measured peaks.
    has_peaks = any(measured.peak_bytes)
    learnt = planner.planned_with(plan)
    return StepMetrics(
        step=taken.step,
        loss=result.loss,
        gradient_norm=result.update.gradient_norm,
        learning_rate=result.update.learning_rate,
        sequences=len(plan.lengths),
        tokens=tokens,
        longest=int(plan.lengths.max()),
        squares=squares,
        strategy=plan.strategy,
        planned_ms=plan.iteration_ms,
        lower_bound_ms=plan.lower_bound_ms,
        measured_ms=measured.slowest_ms,
        wall_ms=times.wall_ms,
        plan_ms=times.plan_ms,
        plan_wait_ms=times.plan_wait_ms,
        transfer_ms=measured.transfer_ms,
        groups_ms=measured.groups_ms,
        memory_bytes=measured.memory_bytes,
        rank_planned_bytes=(
            planned_bytes(planner, plan) if has_peaks else (None,) * len(measured.peak_bytes)
        ),
        rank_peak_bytes=measured.peak_bytes,
        tokens_per_s=1e3 * tokens / times.wall_ms,
        mfu=utilisation.of(tokens, squares, times.wall_ms),
        bubble=balance.bubble,
        imbalance=balance.imbalance,
        replica_planned_ms=tuple(replica.predicted_ms for replica in plan.replicas),
        replica_measured_ms=measured.replica_ms,
        ranks_per_device=utilisation.ranks_per_device,
        rank_rates=tuple(learnt.rates or ()),
        link_slowdowns=tuple(learnt.link_slowdowns),
        moved=taken.group.num_moved(taken.step),
    )


def planned_bytes(planner: RunPlanner, plan: Plan) -> tuple[int | None, ...]:
    """Return the predicted peak memory of each rank; None without work."""
    by_rank = planner.rank_memory(plan)
    return tuple(None if memory is None else round(memory.total_bytes) for memory in by_rank)
