"""Writes a run's files during training, and summarises the run at its end."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hydraulis._core import Plan
from hydraulis.planner.static import StaticComparison, StaticTotal
from hydraulis.runtime.iteration import Iteration
from hydraulis.runtime.memory.prediction import MemoryPrediction
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.measured_times import micro_batch_times
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.resumed_records import (
    bring_to_step,
    read_calibration,
    read_lines,
    read_record,
    read_strategy,
    record_lines,
)
from hydraulis.runtime.records.run_directory import (
    CALIBRATIONS,
    EVALUATIONS,
    METRICS,
    PLANS,
    SAMPLES,
    TIMES,
    TRACE,
    RunDirectory,
)
from hydraulis.runtime.records.run_lock import RunLock
from hydraulis.runtime.records.samples import Samples
from hydraulis.runtime.records.totals import Totals
from hydraulis.runtime.records.trace import MEASURED, PLANNED, chrome_trace
from hydraulis.runtime.records.tracking import Tracker

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
        wall_ms: Wall-clock time of all steps.
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
        ranks_per_device: Ranks that share one device. Above 1 the run is a test, and times mean nothing.
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
    wall_ms: float
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
    ranks_per_device: int
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
        lock: Lock that excludes other runs from the folder; None on ranks that do not write.
    """

    directory: RunDirectory
    planner: RunPlanner
    trace_step: int | None
    static: StaticComparison | None = None
    trackers: Sequence[Tracker] = ()
    lock: RunLock | None = None
    _totals: Totals = field(init=False, default_factory=Totals)
    _lines_before: int = field(init=False, default=0)
    _evaluations: list[Evaluation] = field(init=False, default_factory=list)

    def add(self, iteration: Iteration) -> None:
        """Record an iteration."""
        metrics = iteration.metrics
        self._totals.add(metrics)
        self.directory.append(METRICS, metrics.to_json())
        self.directory.append(PLANS, iteration.plan.to_json())
        # Other times would distort the profile that is refined by them.
        measured = iteration.result.measured
        times = micro_batch_times(iteration.plan, measured.timelines) if iteration.has_plain_times else None
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
            tracker.log(evaluation.step, evaluation.tracked())

    def sampled(self, samples: Samples) -> None:
        """Record sampled texts."""
        self.directory.append(SAMPLES, samples.to_json())
        for tracker in self.trackers:
            tracker.log(samples.step, samples.tracked())

    def close(self) -> None:
        """Close the tracking services, and release the lock of the folder, also if a service fails."""
        with ExitStack() as stack:
            if self.lock is not None:
                stack.callback(self.lock.release)
            for tracker in reversed(self.trackers):
                stack.callback(tracker.close)

    def recalibrated(self, factors: Mapping[str, float]) -> None:
        """Record the schemes' correction factors after the last added iteration."""
        assert self._totals.last is not None
        line = {"step": self._totals.last.step, "factors": dict(factors)}
        self.directory.append(CALIBRATIONS, json.dumps(line))

    def go_on(self, step: int) -> list[str]:
        """Continue a run's records after `step` iterations; return notes about lost records.

        Records of later iterations and unreadable ones are removed (see `bring_to_step`).
        """
        notes = bring_to_step(self.directory, step)
        self._lines_before = sum(1 for _ in read_lines(self.directory, METRICS, read_strategy))
        return notes

    def describe_other_evaluations(self, data: str) -> str:
        """Describe the change if the last evaluation was on other data; return an empty string otherwise.

        Args:
            data: Fingerprint of the sequences that are evaluated from now on.
        """
        evaluations = list(read_lines(self.directory, EVALUATIONS, Evaluation.from_json))
        if not evaluations or evaluations[-1].data == data:
            return ""
        return (
            f"held-out data differ from those of the evaluations up to step {evaluations[-1].step} "
            "(data.validation, train.evaluate_sequences): losses before and after do not compare, and the "
            "best checkpoint is one of the later ones"
        )

    def used(self) -> list[str]:
        """Return the distinct strategies of all recorded iterations, in the order of their first use."""
        found = read_lines(self.directory, METRICS, read_strategy)
        return list(dict.fromkeys(strategy for _, strategy in found))

    def factors(self, step: int) -> Mapping[str, float]:
        """Return the schemes' correction factors after `step` iterations; none if no line is of that step."""
        return dict(read_lines(self.directory, CALIBRATIONS, read_calibration)).get(step, {})

    def last(self) -> StepMetrics | None:
        """Return the metrics of the last recorded iteration; None without one."""
        last = None
        for metrics in read_lines(self.directory, METRICS, StepMetrics.from_json):
            last = metrics
        return last

    def summary(self) -> RunSummary:
        """Summarise a run of at least one recorded step."""
        totals = self._totals
        assert totals.first is not None
        assert totals.last is not None
        static_steps, static_planned_ms = self._add_to_static()
        return RunSummary(
            first_step=totals.first.step,
            steps=totals.steps,
            first_loss=totals.first.loss,
            last_loss=totals.last.loss,
            evaluations=list(self._evaluations),
            tokens_per_s=totals.tokens_per_s,
            mfu=totals.mfu,
            wall_ms=totals.wall_ms,
            plan_ms=totals.plan_ms,
            bubble=totals.bubble,
            imbalance=totals.imbalance,
            strategies=totals.strategies.most_common(),
            planned_ms=totals.planned_ms,
            measured_ms=totals.measured_ms,
            median_error=totals.median_error,
            transfer_share=totals.transfer_ms / totals.wall_ms,
            groups_ms=totals.groups_ms,
            memory_bytes=totals.memory_bytes,
            memory=totals.memory,
            static=self.static.best() if self.static and static_steps else None,
            static_steps=static_steps,
            static_planned_ms=static_planned_ms,
            ranks_per_device=totals.ranks_per_device,
            directory=self.directory.path,
            files=sorted(self.directory.path.iterdir()),
        )

    def _add_to_static(self) -> tuple[int, float]:
        """Plan recorded batches under static strategies; return their number and their steps' total time."""
        if self.static is None:
            return 0, 0.0
        planned = self._totals.planned
        places = np.linspace(0, len(planned.values) - 1, MOST_STATIC_STEPS).round().astype(int)
        chosen = {self._lines_before + int(place) * planned.stride for place in places}
        compared = []
        records = zip(
            record_lines(self.directory, PLANS), record_lines(self.directory, METRICS), strict=False
        )
        for number, (line, of_step) in enumerate(records):
            if number not in chosen:
                continue
            plan, metrics = read_record(line, Plan.from_json), read_record(of_step, StepMetrics.from_json)
            if plan is None or metrics is None:
                continue
            # Static strategies are planned for ranks and links without slowdown.
            if plan.cluster.rates == self.static.cluster.rates and not metrics.link_slowdowns:
                self.static.add(plan.lengths)
                compared.append(plan.step_ms)
        return len(compared), sum(compared)
