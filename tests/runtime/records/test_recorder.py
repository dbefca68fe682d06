"""What a run leaves behind, and its sum."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hydraulis import Cluster, Link, Plan, Planner
from hydraulis.config.planner import PlannerConfig
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.planner.static import StaticComparison
from hydraulis.runtime.iteration import Iteration
from hydraulis.runtime.planning.run_planner import RunPlanner, run_link
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.recorder import Recorder
from hydraulis.runtime.records.run_directory import RunDirectory
from hydraulis.runtime.records.run_lock import RunLock, check_unlocked
from hydraulis.runtime.records.samples import SampledText, Samples
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.sharded_optimizer import Update
from hydraulis.runtime.step_result import StepMeasurement, StepResult
from profiles import made_up_profile
from runtime.tiny import CAPS
from small_model import small_config

CLUSTER = Cluster(gpus=2, gpus_per_node=2)
STRATEGIES = ["2x<1>", "1x<tp2>"]
CONFIG = PlannerConfig(strategies=tuple(STRATEGIES), memory_mib=1, link="1,0.001,0")
BATCHES = ([9, 9, 8], [60, 3], [30, 30, 2], [5])
# Choices and planned times are made up, so that counts and errors are known.
CHOSEN = ("1x<tp2>", "2x<1>", "2x<1>", "2x<1>")
PLANNED = (100.0, 100.0, 100.0, 100.0)
MEASURED = (100.0, 200.0, 80.0, 50.0)


def record(directory: RunDirectory, longest: int, trace_step: int | None) -> Recorder:
    profile = made_up_profile(CAPS)
    planner = RunPlanner(CONFIG, profile, CLUSTER)
    static = StaticComparison.for_strategies(profile, CLUSTER, STRATEGIES, longest)
    return Recorder(directory, planner, trace_step, static)


def slow_link() -> Link:
    model = ModelParameters.from_config(small_config())
    link = run_link(CONFIG, made_up_profile(CAPS), CLUSTER, model, torch.bfloat16)
    assert link is not None
    return link


def planned_ms(recorder: Recorder, steps: Iterable[int]) -> float:
    batches = [np.array(BATCHES[step]) for step in steps]
    return sum(recorder.planner.plan(batch, batch - 1).step_ms for batch in batches)


def iteration(recorder: Recorder, step: int) -> Iteration:
    lengths = np.array(BATCHES[step])
    plan = recorder.planner.plan(lengths, lengths - 1)
    metrics = StepMetrics(
        step=step + 1,
        loss=6.0 - step,
        gradient_norm=1.0,
        learning_rate=1e-3,
        sequences=len(BATCHES[step]),
        tokens=sum(BATCHES[step]),
        longest=max(BATCHES[step]),
        squares=sum(length**2 for length in BATCHES[step]),
        strategy=CHOSEN[step],
        planned_ms=PLANNED[step],
        lower_bound_ms=1.0,
        measured_ms=MEASURED[step],
        wall_ms=500.0,
        plan_ms=1.0,
        plan_wait_ms=0.5,
        transfer_ms=2.0,
        groups_ms=3.0,
        memory_bytes=1 << 30,
        rank_planned_bytes=(900, 900),
        rank_peak_bytes=(1_000 + step, None),
        tokens_per_s=2.0 * sum(BATCHES[step]),
        mfu=0.1 * step if step else None,
        bubble=0.1 * step,
        imbalance=1.0 + step,
        replica_planned_ms=tuple(replica.predicted_ms for replica in plan.replicas),
        replica_measured_ms=tuple(2 * replica.predicted_ms for replica in plan.replicas),
        ranks_per_device=1,
        rank_rates=tuple(plan.cluster.rates or ()),
        link_slowdowns=(),
        moved=0,
    )
    timelines = recorder.planner.timeline(plan)
    return Iteration(
        plan=plan,
        result=StepResult(
            6.0 - step,
            Update(1.0, 1e-3),
            StepMeasurement(
                timelines=timelines,
                computed_ms=(1.0, None),
                memory_bytes=1 << 30,
                peak_bytes=(1_000 + step, None),
                is_counted=step == 0,
                transfer_ms=2.0,
                groups_ms=3.0,
                crossings=(),
            ),
        ),
        metrics=metrics,
        group=BatchGroup(first_step=metrics.step, last_step=metrics.step),
    )


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def test_every_iteration_is_on_disk_as_soon_as_it_is_recorded(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=2)
    for step in range(len(BATCHES)):
        one = iteration(recorder, step)
        recorder.add(one)
        lines = (directory.path / "metrics.jsonl").read_text().splitlines()
        plans = (directory.path / "plans.jsonl").read_text().splitlines()
        assert len(lines) == len(plans) == step + 1
        assert json.loads(lines[-1])["step"] == step + 1
        assert Plan.from_json(plans[-1]) == one.plan
        times = (directory.path / "times.jsonl").read_text().splitlines()
        assert len(times) == step + 1
        # Of a step in which memory was counted there are none.
        assert (json.loads(times[-1]) is None) is (step == 0)
        assert (directory.path / "trace.json").exists() is (step >= 1)
    trace = json.loads((directory.path / "trace.json").read_text())
    assert trace["otherData"] == {"step": 2}
    assert iteration(recorder, 1).plan.strategy in trace["traceEvents"][0]["args"]["name"]


def test_times_of_shared_devices_and_under_the_profiler_are_not_recorded(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=None)
    alone = iteration(recorder, 1)
    recorder.add(alone)
    recorder.add(replace(alone, is_profiled=True))
    assert recorder.summary().ranks_per_device == 1
    recorder.add(replace(alone, metrics=replace(alone.metrics, ranks_per_device=8)))
    times = (directory.path / "times.jsonl").read_text().splitlines()
    assert [json.loads(line) is None for line in times] == [False, True, True]
    assert recorder.summary().ranks_per_device == 8


def test_a_resume_removes_later_records(directory: RunDirectory) -> None:
    earlier = record(directory, 60, trace_step=None)
    for step in range(3):
        earlier.add(iteration(earlier, step))
    for step in (1, 2, 3):
        earlier.evaluated(Evaluation(step, 5.0 - step, "ab"))
        earlier.sampled(Samples(step, (SampledText("a", f"b{step}"),)))
    recorder = record(directory, 60, trace_step=None)
    recorder.go_on(2)
    evaluations = (directory.path / "evaluations.jsonl").read_text()
    assert evaluations == "".join(
        f'{{"step": {step}, "loss": {5.0 - step}, "data": "ab"}}\n' for step in (1, 2)
    )
    samples = (directory.path / "samples.jsonl").read_text().splitlines()
    assert [Samples.from_json(line).texts[0].text for line in samples] == ["b1", "b2"]
    recorder.add(iteration(recorder, 2))
    recorder.add(iteration(recorder, 3))
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert len((directory.path / "plans.jsonl").read_text().splitlines()) == 4
    summary = recorder.summary()
    assert (summary.first_step, summary.steps, summary.first_loss) == (3, 2, 4.0)


@pytest.mark.parametrize(("step", "stays"), [(1, False), (2, True)])
def test_a_resume_removes_the_trace_of_a_later_step(
    directory: RunDirectory, step: int, *, stays: bool
) -> None:
    earlier = record(directory, 60, trace_step=2)
    for number in range(3):
        earlier.add(iteration(earlier, number))
    record(directory, 60, trace_step=None).go_on(step)
    assert (directory.path / "trace.json").exists() is stays


class Listener:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, dict[str, float | str]]] = []
        self.closed = False

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        self.heard.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


def test_trackers_receive_every_step_and_evaluation(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=None)
    listeners = [Listener(), Listener()]
    recorder.trackers = listeners
    for step in range(2):
        recorder.add(iteration(recorder, step))
    recorder.evaluated(Evaluation(2, 4.5, "ab"))
    recorder.sampled(Samples(2, (SampledText("a", "b"), SampledText("c", "d"))))
    recorder.close()
    for listener in listeners:
        assert [step for step, _ in listener.heard] == [1, 2, 2, 2]
        assert listener.heard[1][1]["train/loss"] == 5.0
        assert listener.heard[2][1] == {"evaluation/loss": 4.5}
        assert listener.heard[3][1] == {"samples/0": "ab", "samples/1": "cd"}
        assert listener.closed
    assert recorder.summary().evaluations == [Evaluation(2, 4.5, "ab")]


def test_a_tracker_that_fails_leaves_no_other_one_open_and_no_lock(directory: RunDirectory) -> None:
    class FailingListener(Listener):
        def close(self) -> None:
            message = "the service is gone"
            raise ConnectionError(message)

    recorder = record(directory, 60, trace_step=None)
    last = Listener()
    recorder.trackers = [FailingListener(), last]
    recorder.lock = RunLock(directory.path)
    with pytest.raises(ConnectionError, match="the service is gone"):
        recorder.close()
    assert last.closed
    check_unlocked(directory.path)


def test_a_trace_is_written_on_request_only(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=None)
    recorder.add(iteration(recorder, 0))
    assert not (directory.path / "trace.json").exists()


def test_the_summary_adds_up(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=1)
    for step in range(len(BATCHES)):
        recorder.add(iteration(recorder, step))
    summary = recorder.summary()
    assert summary is not None
    assert (summary.first_step, summary.steps) == (1, 4)
    assert (summary.first_loss, summary.last_loss) == (6.0, 3.0)
    assert summary.strategies == [("2x<1>", 3), ("1x<tp2>", 1)]
    # 156 tokens in four times 500 ms; of the three steps whose share is known 0.1, 0.2 and 0.3.
    assert summary.tokens_per_s == pytest.approx(78.0)
    assert summary.mfu == pytest.approx(0.6 / 3)
    assert (summary.plan_ms, summary.bubble, summary.imbalance) == pytest.approx((1.0, 0.15, 2.5))
    assert (summary.planned_ms, summary.measured_ms) == (400.0, 430.0)
    # Relative to the measured time: 0, 0.5, 0.25 and 1.
    assert summary.median_error == pytest.approx((0.25 + 0.5) / 2)
    assert {path.name for path in summary.files} == {
        "metrics.jsonl",
        "plans.jsonl",
        "times.jsonl",
        "trace.json",
    }
    assert all(path.is_file() for path in summary.files)


def test_the_summary_names_the_best_static_strategy(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=None)
    alone = Planner(made_up_profile(CAPS), CLUSTER, strategies=["1x<tp2>"])
    for step in range(len(BATCHES)):
        recorder.add(iteration(recorder, step))
    summary = recorder.summary()
    assert summary is not None
    assert summary.static is not None
    assert summary.static.strategy == "1x<tp2>"
    assert summary.static.planned_ms == pytest.approx(
        sum(alone.plan(batch).iteration_ms for batch in BATCHES)
    )
    assert summary.static_steps == len(BATCHES)
    assert summary.static_planned_ms == planned_ms(recorder, range(len(BATCHES)))


def test_static_strategies_are_compared_by_steps_with_transfers(directory: RunDirectory) -> None:
    recorder, slow = record(directory, 60, trace_step=None), slow_link()
    profile = made_up_profile(CAPS)
    recorder.planner = RunPlanner(CONFIG, profile, CLUSTER, slow)
    recorder.static = StaticComparison.for_strategies(profile, CLUSTER, STRATEGIES, 60, link=slow)
    for step in range(len(BATCHES)):
        one = iteration(recorder, step)
        # In step 2 the plan counts with slow links, which static strategies do not.
        recorder.add(replace(one, metrics=replace(one.metrics, link_slowdowns=(2.0,) if step == 1 else ())))
    summary = recorder.summary()
    assert (summary.static_steps, summary.static_planned_ms) == (3, planned_ms(recorder, (0, 2, 3)))
    unlinked = record(directory, 60, trace_step=None)
    assert summary.static_planned_ms > 1.1 * planned_ms(unlinked, (0, 2, 3))
    assert summary.static is not None
    assert summary.static.planned_ms >= summary.static_planned_ms


def test_a_long_run_is_compared_by_a_sample_of_its_steps(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydraulis.runtime.records.recorder.MOST_STATIC_STEPS", 2)
    recorder = record(directory, 60, trace_step=None)
    assert recorder.static is not None
    for step in range(len(BATCHES)):
        recorder.add(iteration(recorder, step))
        # Every rank waits while a step is recorded.
        assert not any(recorder.static._totals.values())
    summary = recorder.summary()
    assert (summary.static_steps, summary.static_planned_ms) == (2, planned_ms(recorder, (0, 3)))
    assert summary.static is not None
    alone = Planner(made_up_profile(CAPS), CLUSTER, strategies=[summary.static.strategy])
    assert summary.static.planned_ms == pytest.approx(
        sum(alone.plan(BATCHES[step]).iteration_ms for step in (0, 3))
    )


def test_calibrations_of_later_steps_are_removed(directory: RunDirectory) -> None:
    earlier = record(directory, 60, trace_step=None)
    # Asked for from the third step on.
    for step in range(4):
        earlier.add(iteration(earlier, step))
        if step >= 2:
            earlier.recalibrated({"<1>": 1.0 + step})
    assert earlier.factors(4) == {"<1>": 4.0}
    # After steps without recalibration there are none.
    assert earlier.factors(5) == {}
    recorder = record(directory, 60, trace_step=None)
    recorder.go_on(3)
    assert recorder.factors(3) == {"<1>": 3.0}
    recorder.go_on(2)
    assert recorder.factors(2) == {}


def test_without_the_setting_no_static_strategy_is_compared(directory: RunDirectory) -> None:
    recorder = record(directory, 60, trace_step=None)
    recorder.static = None
    recorder.add(iteration(recorder, 0))
    summary = recorder.summary()
    assert (summary.static, summary.static_steps) == (None, 0)


def test_a_resumed_run_takes_the_rates_of_its_last_step_and_static_strategies_are_planned_at_full_rate(
    directory: RunDirectory,
) -> None:
    recorder = record(directory, 60, trace_step=None)
    usual, slow = recorder.planner, Cluster(2, 2, rates=[1.0, 0.5])
    assert recorder.last() is None
    for step in range(4):
        # Rank 1 is slow in steps 2 and 3.
        recorder.planner = RunPlanner(CONFIG, made_up_profile(CAPS), slow) if step in (1, 2) else usual
        recorder.add(iteration(recorder, step))
    resumed = record(directory, 60, trace_step=None)
    assert [last.rank_rates for last in [resumed.last()] if last] == [()]
    summary = recorder.summary()
    assert (summary.static_steps, summary.static_planned_ms) == (2, planned_ms(recorder, (0, 3)))
    resumed.go_on(3)
    assert [last.rank_rates for last in [resumed.last()] if last] == [(1.0, 0.5)]
