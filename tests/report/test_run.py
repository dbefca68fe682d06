"""Reading a run directory: its records, and files that no run writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers import refused
from hydraulis import Planner
from hydraulis.report.run import read_run
from report.made_up_run import CLUSTER, PROFILE, STRATEGIES, TRACED, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "demo"
    write_run(path)
    return path


def test_the_written_records_are_read(folder: Path, tmp_path: Path) -> None:
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
    assert (len(run.metrics), run.planned_steps) == (6, [1, 2, 3, 4, 5])
    assert (run.traced, run.notes) == (None, [])


@pytest.mark.parametrize("name", ["metrics.jsonl", "plans.jsonl", "evaluations.jsonl"])
def test_an_incomplete_line_does_not_count(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    with (path / name).open("ab") as file:
        file.write(b'{"step": 7, "lo')
    run, whole = read_run(path), read_run(folder)
    assert (run.metrics, run.plans, run.evaluations) == (whole.metrics, whole.plans, whole.evaluations)
    assert run.notes == []


def test_lines_that_cannot_be_read_are_left_out_and_noted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    for name, places in (("metrics.jsonl", [1, 3]), ("plans.jsonl", [4]), ("evaluations.jsonl", [0])):
        lines = (path / name).read_bytes().splitlines(keepends=True)
        for place in places:
            lines[place] = b"\0" * 40 + b"\n"
        (path / name).write_bytes(b"".join(lines))
    run, whole = read_run(path), read_run(folder)
    assert [one.step for one in run.metrics] == [1, 3, 5, 6]
    assert run.planned_steps == [1, 3, 6]
    assert run.plans == [whole.plans[step - 1] for step in (1, 3, 6)]
    assert run.evaluations == whole.evaluations[1:]
    assert run.notes == [
        "line 2 and 1 other of metrics.jsonl cannot be read and is left out",
        "line 5 of plans.jsonl cannot be read and is left out",
        "metrics.jsonl lacks the metrics of 2 steps between the first and the last one",
        "plans.jsonl lacks the plans of 1 step",
        "trace.json is left out: step 2 has no plan in plans.jsonl",
        "line 1 of evaluations.jsonl cannot be read and is left out",
    ]


def test_steps_without_metrics_are_counted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / "trace.json").unlink()
    # Like a resume that lost the metrics of steps 2 to 4.
    for name in ("metrics.jsonl", "plans.jsonl"):
        lines = (path / name).read_text().splitlines(keepends=True)
        (path / name).write_text("".join(lines[:1] + lines[4:]))
    run = read_run(path)
    assert [one.step for one in run.metrics] == run.planned_steps == [1, 5, 6]
    assert run.notes == ["metrics.jsonl lacks the metrics of 3 steps between the first and the last one"]


def test_a_plan_of_another_step_is_not_drawn(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    # A line is gone from the middle, and all plans after it moved up.
    lines = (path / "plans.jsonl").read_text().splitlines(keepends=True)
    (path / "plans.jsonl").write_text("".join(lines[:2] + lines[3:]))
    run = read_run(path)
    assert run.planned_steps == [1, 2]
    assert run.notes == ["plans.jsonl lacks the plans of 3 steps"]


def test_the_last_record_of_a_step_counts(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    for name in ("metrics.jsonl", "plans.jsonl"):
        lines = (path / name).read_text().splitlines(keepends=True)
        (path / name).write_text("".join(lines[:4] + lines[2:]))
    run, whole = read_run(path), read_run(folder)
    assert (run.metrics, run.plans, run.notes) == (whole.metrics, whole.plans, [])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trace.json", "{}"),
        ("trace.json", "[]"),
        ("trace.json", "[" * 100_000),
        ("trace.json", '{"otherData": {"step": 99}, "traceEvents": []}'),
        ("trace.json", '{"otherData": {"step": 2}, "traceEvents": []}'),
        ("analysis.json", '{"lengths": 3}'),
        ("analysis.json", "{}"),
        ("analysis.json", ""),
    ],
)
def test_an_unreadable_optional_file_is_omitted(
    folder: Path, tmp_path: Path, name: str, content: str
) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / name).write_text(content)
    run = read_run(path)
    assert (run.traced if name == "trace.json" else run.analysis) is None
    (note,) = run.notes
    assert note.startswith(f"{name} is left out: ")


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / name).unlink()
    with refused("file_unreadable", name):
        read_run(path)


def test_a_run_without_a_step_has_no_report(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    for name in ("metrics.jsonl", "plans.jsonl"):
        (path / name).unlink()
    with refused("run_unreadable", path):
        read_run(path)


@pytest.mark.parametrize("content", ["", "{}\n", "[1]\n", '{"step": \n'])
def test_metrics_without_a_readable_step_are_no_run(folder: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / "metrics.jsonl").write_text(content)
    with refused("run_unreadable", path):
        read_run(path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("profile.json", "{}", "is damaged, or from another version: "),
        ("config.json", "{}", "'planner' is missing; restore it"),
        ("config.json", "[]", "its values are of other types than a run writes; restore it"),
        ("config.json", "{", "column 2 (char 1); restore it"),
    ],
)
def test_a_damaged_file_is_named_with_what_it_lacks(
    folder: Path, tmp_path: Path, name: str, content: str, reason: str
) -> None:
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    (path / name).write_text(content)
    with refused("run_unreadable", f"'{path / name}'", reason):
        read_run(path)
