"""Writes what a run leaves behind, and sums it up."""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hydraulis._core import Plan
from hydraulis.planner.batch_planner import BatchPlanner
from hydraulis.planner.static import StaticComparison, StaticTotal
from hydraulis.runtime.loop import Iteration
from hydraulis.runtime.memory.prediction import MemoryPrediction
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.metrics import (
    StepMetrics,
    mean_mfu,
    mean_tokens_per_s,
    median_prediction_error,
)
from hydraulis.runtime.records.run_directory import (
    CALIBRATIONS,
    EVALUATIONS,
    METRICS,
    PLANS,
    TIMES,
    TRACE,
    RunDirectory,
)
from hydraulis.runtime.records.run_lock import RunClaim
from hydraulis.runtime.records.times import micro_batch_times
from hydraulis.runtime.records.trace import MEASURED, PLANNED, chrome_trace, traced_step
from hydraulis.runtime.records.tracking.tracker import Tracker

# Each is planned under every static strategy, which for a search may be many.
MOST_STATIC_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a few numbers.

    Attributes:
        first_step: counted from 1; above it where an earlier run was resumed.
        steps: that were run.
        first_loss: of the first of them, in nats.
        last_loss: of the last one.
        evaluations: on what is held out, in their order.
        tokens_per_s: real tokens per second on the wall, over all steps.
        mfu: of all steps together of which it is known; None where the devices' peak is not.
        plan_ms: what planning took on the wall, the median step.
        bubble: of the mean step.
        imbalance: of the mean step.
        strategies: how often each was chosen, the most frequent first.
        planned_ms: of all iterations together.
        measured_ms: of all iterations together.
        median_error: of the planned time relative to the measured one; None if nothing was measured.
        transfer_share: of all time on the wall, what rank 0 did nothing but transfers for.
        groups_ms: what making process groups took on the wall, each on its first use.
        memory_bytes: the most that any rank held in any iteration.
        memory: what was planned and held where the most was held, of all ranks and iterations of which both
            are known; None if there are none.
        static: the best static strategy for the same batches; None if none admits the longest sequence.
        static_steps: how many steps it was planned for, spread over the run; 0 where it was not compared,
            because the times that plans were made with changed on the way.
        static_planned_ms: of the run's own plans in those steps.
        directory: the run's folder.
        files: what it holds.
    """

    first_step: int
    steps: int
    first_loss: float
    last_loss: float
    evaluations: list[Evaluation]
    tokens_per_s: float
    mfu: float | None
    plan_ms: float
    bubble: float
    imbalance: float
    strategies: list[tuple[str, int]]
    planned_ms: float
    measured_ms: float
    median_error: float | None
    transfer_share: float
    groups_ms: float
    memory_bytes: int
    memory: MemoryPrediction | None
    static: StaticTotal | None
    static_steps: int
    static_planned_ms: float
    directory: Path
    files: list[Path]


@dataclass(slots=True)
class Recorder:
    """Keeps the files of a run up to date, iteration by iteration.

    Attributes:
        directory: of the run.
        planner: that made the plans.
        trace_step: whose timeline is exported; None for none.
        static: compares with static strategies, once the run has ended; None to leave that out.
        trackers: that are told of every step too.
        claim: keeps other trainings out of the folder; None on ranks that do not write.
    """

    directory: RunDirectory
    planner: BatchPlanner
    trace_step: int | None
    static: StaticComparison | None = None
    trackers: Sequence[Tracker] = ()
    claim: RunClaim | None = None
    _metrics: list[StepMetrics] = field(init=False, default_factory=list)
    _evaluations: list[Evaluation] = field(init=False, default_factory=list)

    def add(self, iteration: Iteration) -> None:
        """Record an iteration."""
        metrics = iteration.metrics
        self._metrics.append(metrics)
        self.directory.append(METRICS, metrics.to_json())
        self.directory.append(PLANS, iteration.plan.to_json())
        # Counting takes a part of the times, from which nobody shall learn.
        outcome = iteration.outcome
        times = None if outcome.is_counted else micro_batch_times(iteration.plan, outcome.timelines)
        self.directory.append(TIMES, json.dumps(times))
        for tracker in self.trackers:
            tracker.log(metrics.step, metrics.tracked())
        if metrics.step == self.trace_step:
            timelines = {
                PLANNED: self.planner.timeline(iteration.plan),
                MEASURED: iteration.outcome.timelines,
            }
            self.directory.write(TRACE, chrome_trace(iteration.plan, timelines, metrics.step))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""
        self._evaluations.append(evaluation)
        self.directory.append(EVALUATIONS, evaluation.to_json())
        for tracker in self.trackers:
            tracker.log(evaluation.step, {"evaluation/loss": evaluation.loss})

    def close(self) -> None:
        """Say that the run has ended."""
        for tracker in self.trackers:
            tracker.close()
        if self.claim is not None:
            self.claim.release()

    def recalibrated(self, factors: Mapping[str, float]) -> None:
        """Record what has been learnt of the schemes' times by the iteration added last."""
        line = {"step": self._metrics[-1].step, "factors": dict(factors)}
        self.directory.append(CALIBRATIONS, json.dumps(line))

    def go_on(self, step: int) -> None:
        """Go on in the folder of a run of which so many iterations count; later ones are forgotten."""
        for name in (METRICS, PLANS, TIMES):
            self.directory.keep_lines(name, step)
        self._keep(CALIBRATIONS, lambda line: bool(json.loads(line)["step"] <= step))
        self._keep(EVALUATIONS, lambda line: Evaluation.from_json(line).step <= step)
        trace = self.directory.path / TRACE
        if trace.exists() and traced_step(json.loads(trace.read_text())) > step:
            self.directory.remove(TRACE)

    def _keep(self, name: str, counts: Callable[[str], bool]) -> None:
        """Keep the first lines of a file that has none for some steps; it need not be there."""
        path = self.directory.path / name
        if path.exists():
            whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            self.directory.keep_lines(name, sum(map(counts, whole)))

    def used(self) -> list[str]:
        """Give the distinct strategies of all iterations on record, in the order of their first use."""
        return list(dict.fromkeys(entry["strategy"] for entry in self._entries(METRICS)))

    def factors(self) -> Mapping[str, float]:
        """Give what had been learnt of the schemes' times by the last iteration on record."""
        entries = self._entries(CALIBRATIONS)
        return entries[-1]["factors"] if entries else {}

    def _entries(self, name: str) -> list[dict[str, Any]]:
        path = self.directory.path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def summary(self) -> RunSummary:
        """Sum up a run of at least one step, of which the last was recorded."""
        compared = self._add_to_static()
        wall_ms = sum(metrics.wall_ms for metrics in self._metrics)
        counts = Counter(metrics.strategy for metrics in self._metrics)
        return RunSummary(
            first_step=self._metrics[0].step,
            steps=len(self._metrics),
            first_loss=self._metrics[0].loss,
            last_loss=self._metrics[-1].loss,
            evaluations=list(self._evaluations),
            tokens_per_s=mean_tokens_per_s(self._metrics),
            mfu=mean_mfu(self._metrics),
            plan_ms=statistics.median(metrics.plan_ms for metrics in self._metrics),
            bubble=statistics.fmean(metrics.bubble for metrics in self._metrics),
            imbalance=statistics.fmean(metrics.imbalance for metrics in self._metrics),
            strategies=counts.most_common(),
            planned_ms=sum(metrics.planned_ms for metrics in self._metrics),
            measured_ms=sum(metrics.measured_ms for metrics in self._metrics),
            median_error=median_prediction_error(self._metrics),
            transfer_share=sum(metrics.transfer_ms for metrics in self._metrics) / wall_ms,
            groups_ms=sum(metrics.groups_ms for metrics in self._metrics),
            memory_bytes=max(metrics.memory_bytes for metrics in self._metrics),
            memory=MemoryPrediction.of(self._metrics),
            static=self.static.best() if self.static else None,
            static_steps=len(compared),
            static_planned_ms=sum(metrics.planned_ms for metrics in compared),
            directory=self.directory.path,
            files=sorted(self.directory.path.iterdir()),
        )

    def _add_to_static(self) -> list[StepMetrics]:
        """Plan recorded batches under static strategies; give the metrics of their steps."""
        if self.static is None:
            return []
        places = np.linspace(0, len(self._metrics) - 1, MOST_STATIC_STEPS)
        compared = {self._metrics[place].step: self._metrics[place] for place in places.round().astype(int)}
        with (self.directory.path / PLANS).open() as lines:
            for step, line in enumerate(lines, start=1):
                if step in compared:
                    self.static.add(Plan.from_json(line).lengths)
        return list(compared.values())
