"""Reading a run directory: its records, and files that no run writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hydraulis import InvalidInputError, Planner
from hydraulis.report.run import read_run
from report.made_up_run import CLUSTER, PROFILE, STRATEGIES, TRACED, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "demo"
    write_run(path)
    return path


def test_it_reads_the_written_records(folder: Path, tmp_path: Path) -> None:
    plans = write_run(tmp_path / "again")
    run = read_run(folder)
    assert run.plans == plans
    assert [one.step for one in run.metrics] == list(range(1, 7))
    assert run.profile == PROFILE
    assert run.strategies == STRATEGIES
    assert run.lengths.tolist() == np.concatenate([plan.lengths for plan in plans]).tolist()


def test_the_traced_step_has_both_timelines(folder: Path) -> None:
    traced = read_run(folder).traced
    assert traced is not None
    assert traced.step == TRACED
    planner = Planner(PROFILE, CLUSTER, strategies=[traced.plan.strategy])
    for name, timelines in (
        ("planned", planner.timeline(traced.plan)),
        ("measured", planner.simulate(traced.plan, slowdowns={0: 1.25}).timelines),
    ):
        ends = [[span.end_ms for span in spans] for spans in traced.timelines[name]]
        for found, expected in zip(ends, timelines, strict=True):
            assert found == pytest.approx([span.end_ms for span in expected])


def test_the_planned_timeline_comes_from_the_trace(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    # Like a step that was planned with corrected times.
    trace = json.loads((path / "trace.json").read_text())
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0:
            event["dur"] *= 1.5
    (path / "trace.json").write_text(json.dumps(trace))
    ends = []
    for run in (read_run(folder), read_run(path)):
        assert run.traced is not None
        ends.append([span.end_ms for spans in run.traced.timelines["planned"] for span in spans])
    assert ends[1] == pytest.approx([1.5 * end for end in ends[0]])


def test_a_running_training_may_lack_a_plan_and_a_trace(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    plans = (path / "plans.jsonl").read_text().splitlines(keepends=True)
    (path / "plans.jsonl").write_text("".join(plans[:-1]))
    (path / "trace.json").unlink()
    run = read_run(path)
    assert len(run.metrics) == len(run.plans) == 5
    assert run.traced is None


@pytest.mark.parametrize("name", ["metrics.jsonl", "plans.jsonl", "config.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / name).unlink()
    with pytest.raises(InvalidInputError, match=name) as error:
        read_run(path)
    assert error.value.code == "file_unreadable"


def test_a_run_without_a_step_has_no_report(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    for name in ("metrics.jsonl", "plans.jsonl"):
        (path / name).unlink()
    with pytest.raises(InvalidInputError, match="no step is recorded in") as error:
        read_run(path)
    assert error.value.code == "run_unreadable"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "{}\n"),
        ("metrics.jsonl", "[1]\n"),
        ("metrics.jsonl", '{"step": \n'),
        ("plans.jsonl", "{}\n"),
        ("profile.json", "{}"),
        ("config.json", "{}"),
        ("config.json", "[]"),
        ("trace.json", "{}"),
        ("trace.json", '{"otherData": {"step": 99}, "traceEvents": []}'),
        ("trace.json", '{"otherData": {"step": 2}, "traceEvents": []}'),
    ],
)
def test_a_file_of_another_kind_is_named(folder: Path, tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / name).write_text(content)
    with pytest.raises(InvalidInputError, match="was not written by a run of this version") as error:
        read_run(path)
    assert error.value.code == "run_unreadable"
    assert str(path) in str(error.value)
