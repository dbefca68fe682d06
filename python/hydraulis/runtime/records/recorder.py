"""Writes a run's files during training, and summarises the run at its end."""

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
from hydraulis.runtime.iteration import Iteration
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

# Each of these steps is planned under every static strategy; a search may have many.
MOST_STATIC_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The summary of a run; times are in milliseconds.

    Attributes:
        first_step: Number of the first step, counted from 1; above 1 for a resumed run.
        steps: Number of steps.
        first_loss: Loss of the first step, in nats.
        last_loss: Loss of the last step, in nats.
        evaluations: Evaluations on held-out data, in their order.
        tokens_per_s: Tokens per second of wall time over all steps, without padding.
        mfu: Mean model FLOP utilisation, weighted by wall time; None if the devices' peak is not known.
        plan_ms: Median wall time of planning a step.
        bubble: Mean bubble of the steps.
        imbalance: Mean imbalance of the steps.
        strategies: Chosen strategies with their number of steps, the most frequent first.
        planned_ms: Sum of the steps' planned times.
        measured_ms: Sum of the steps' measured times.
        median_error: Median absolute prediction error; None if no time was measured.
        transfer_share: Share of the wall time that rank 0 spent on exposed transfers.
        groups_ms: Wall time of creating process groups, each on its first use.
        memory_bytes: Maximum of `StepMetrics.memory_bytes` over all steps.
        memory: Planned and measured memory at the highest measured peak, over all ranks and steps that have
            both; None without any.
        static: Best static strategy for the same batches; None if no strategy admits the longest sequence.
        static_steps: Steps, spread over the run, that the static strategies were planned for; 0 without a
            comparison, because the predicted times changed during the run.
        static_planned_ms: Sum of the run's own planned times in those steps.
        directory: The run's folder.
        files: Paths of the entries of the run's folder.
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
    """Appends each iteration to the run's files and the tracking services.

    Attributes:
        directory: The run's folder.
        planner: Planner of the run.
        trace_step: Step whose timeline is exported; None for none.
        static: Comparison with static strategies at the end of the run; None to skip it.
        trackers: Tracking services, which receive every step.
        claim: Lock that excludes other runs from the folder; None on ranks that do not write.
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
        # Counting memory takes time, so these times would distort a profile.
        measured = iteration.result.measured
        times = None if measured.is_counted else micro_batch_times(iteration.plan, measured.timelines)
        self.directory.append(TIMES, json.dumps(times))
        for tracker in self.trackers:
            tracker.log(metrics.step, metrics.tracked())
        if metrics.step == self.trace_step:
            timelines = {
                PLANNED: self.planner.timeline(iteration.plan),
                MEASURED: measured.timelines,
            }
            self.directory.write(TRACE, chrome_trace(iteration.plan, timelines, metrics.step))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""
        self._evaluations.append(evaluation)
        self.directory.append(EVALUATIONS, evaluation.to_json())
        for tracker in self.trackers:
            tracker.log(evaluation.step, {"evaluation/loss": evaluation.loss})

    def close(self) -> None:
        """Close the tracking services, and release the lock of the folder."""
        for tracker in self.trackers:
            tracker.close()
        if self.claim is not None:
            self.claim.release()

    def recalibrated(self, factors: Mapping[str, float]) -> None:
        """Record the schemes' correction factors after the last added iteration."""
        line = {"step": self._metrics[-1].step, "factors": dict(factors)}
        self.directory.append(CALIBRATIONS, json.dumps(line))

    def go_on(self, step: int) -> None:
        """Continue a run's records after `step` iterations; records of later iterations are removed."""
        for name in (METRICS, PLANS, TIMES):
            self.directory.keep_lines(name, step)
        self._keep(CALIBRATIONS, lambda line: bool(json.loads(line)["step"] <= step))
        self._keep(EVALUATIONS, lambda line: Evaluation.from_json(line).step <= step)
        trace = self.directory.path / TRACE
        if trace.exists() and traced_step(json.loads(trace.read_text())) > step:
            self.directory.remove(TRACE)

    def _keep(self, name: str, counts: Callable[[str], bool]) -> None:
        """Keep the leading lines that `counts` accepts, in a file that has no line for some steps."""
        path = self.directory.path / name
        if path.exists():
            whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            self.directory.keep_lines(name, sum(map(counts, whole)))

    def used(self) -> list[str]:
        """Return the distinct strategies of all recorded iterations, in the order of their first use."""
        return list(dict.fromkeys(entry["strategy"] for entry in self._entries(METRICS)))

    def factors(self) -> Mapping[str, float]:
        """Return the schemes' correction factors after the last recorded iteration."""
        entries = self._entries(CALIBRATIONS)
        return entries[-1]["factors"] if entries else {}

    def _entries(self, name: str) -> list[dict[str, Any]]:
        path = self.directory.path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def summary(self) -> RunSummary:
        """Summarise a run of at least one recorded step."""
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
            memory=MemoryPrediction.from_metrics(self._metrics),
            static=self.static.best() if self.static else None,
            static_steps=len(compared),
            static_planned_ms=sum(metrics.planned_ms for metrics in compared),
            directory=self.directory.path,
            files=sorted(self.directory.path.iterdir()),
        )

    def _add_to_static(self) -> list[StepMetrics]:
        """Plan recorded batches under static strategies; return the metrics of their steps."""
        if self.static is None:
            return []
        places = np.linspace(0, len(self._metrics) - 1, MOST_STATIC_STEPS)
        compared = {self._metrics[place].step: self._metrics[place] for place in places.round().astype(int)}
        with (self.directory.path / PLANS).open() as lines:
            for step, line in enumerate(lines, start=1):
                if step in compared:
                    self.static.add(Plan.from_json(line).lengths)
        return list(compared.values())
