"""The exported timeline: JSON that Perfetto opens, planned above measured."""

import json
from collections import defaultdict
from typing import Any

import pytest

from hydraulis import Plan
from hydraulis._core import Span
from hydraulis.runtime.records.trace import MEASURED, PLANNED, chrome_trace, durations, traced_step
from runtime.tiny import planner_for

STRATEGY = "1x<tp2,pp2>+1x<pp2>+2x<1>"
LENGTHS = (60, 50, 40, 30, 28, 20, 12, 9, 7, 7, 5, 3)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner_for(16, [STRATEGY]).plan(LENGTHS)


def measured(plan: Plan) -> list[list[Span]]:
    """Make every forward of stage j take j + 1 ms and every backward 10 (j + 1)."""
    durations = [
        [
            [(1.0 if forward else 10.0) * (stage + 1) for forward in _order(plan, replica.ranks, stage)]
            for stage in range(replica.scheme.pp)
        ]
        for replica in plan.replicas
    ]
    return plan.measured_timeline(durations)


def _order(plan: Plan, ranks: list[int], stage: int) -> list[bool]:
    rank = next(rank for rank in ranks if (place := plan.position(rank)) and place.stage == stage)
    kinds = [type(instruction).__name__ for instruction in plan.instructions(rank)]
    return [kind == "Forward" for kind in kinds if kind != "SendReceive"]


@pytest.fixture(scope="module")
def document(plan: Plan) -> dict[str, Any]:
    planned = planner_for(16, [STRATEGY]).timeline(plan)
    timelines = {PLANNED: planned, MEASURED: measured(plan)}
    parsed: dict[str, Any] = json.loads(chrome_trace(plan, timelines, step=7))
    return parsed


def spans_of(document: dict[str, Any], process: int) -> dict[int, list[dict[str, Any]]]:
    spans = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            spans[event["tid"]].append(event)
    return spans


def test_a_trace_is_an_object_with_complete_events(document: dict[str, Any]) -> None:
    assert document["displayTimeUnit"] == "ms"
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(complete) > 20
    for event in complete:
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] > 0
        assert event["name"][0] == {"forward": "F", "backward": "B"}[event["cat"]]
        assert event["name"][1:].isdigit()
    assert {event["ph"] for event in document["traceEvents"]} == {"X", "M"}


def test_every_working_rank_has_its_name_and_its_spans(plan: Plan, document: dict[str, Any]) -> None:
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    for process in (0, 1):
        spans = spans_of(document, process)
        ranks = {rank for replica in plan.replicas for rank in replica.ranks}
        assert set(spans) == ranks == {rank for pid, rank in names if pid == process}
        assert len(ranks) == 8
        for number, replica in enumerate(plan.replicas):
            for rank in replica.ranks:
                place = plan.position(rank)
                assert place is not None
                expected = f"rank {rank}: replica {number} {replica.scheme}, stage {place.stage}"
                assert names[process, rank] == expected
                wanted = [
                    type(instruction).__name__[0] + str(instruction.micro_batch)
                    for instruction in plan.instructions(rank)
                    if type(instruction).__name__ != "SendReceive" and hasattr(instruction, "micro_batch")
                ]
                assert [span["name"] for span in spans[rank]] == wanted


def test_times_are_those_of_the_timelines_in_microseconds(plan: Plan, document: dict[str, Any]) -> None:
    for rank, spans in spans_of(document, 1).items():
        place = plan.position(rank)
        assert place is not None
        for span in spans:
            unit = 1e3 if span["cat"] == "forward" else 1e4
            assert span["dur"] == pytest.approx(unit * (place.stage + 1))
    timelines = measured(plan)
    ends = [span["ts"] + span["dur"] for spans in spans_of(document, 1).values() for span in spans]
    assert max(ends) == pytest.approx(1e3 * max(span.end_ms for spans in timelines for span in spans))
    planned_ends = [span["ts"] + span["dur"] for spans in spans_of(document, 0).values() for span in spans]
    assert max(planned_ends) == pytest.approx(1e3 * plan.iteration_ms)


def test_planned_and_measured_are_two_processes(plan: Plan, document: dict[str, Any]) -> None:
    names = {
        event["pid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {0: f"planned: {plan.strategy}", 1: f"measured: {plan.strategy}"}


def test_a_replica_without_work_has_no_spans() -> None:
    plan = planner_for(2, ["2x<1>"]).plan([9])
    timeline = planner_for(2, ["2x<1>"]).timeline(plan)
    document = json.loads(chrome_trace(plan, {PLANNED: timeline}))
    assert "otherData" not in document
    assert set(spans_of(document, 0)) == {next(r.ranks[0] for r in plan.replicas if r.micro_batches)}


def test_each_span_states_the_sequences_and_tokens_of_its_micro_batch(
    plan: Plan, document: dict[str, Any]
) -> None:
    for replica in plan.replicas:
        for rank in replica.ranks:
            for span in spans_of(document, 0)[rank]:
                lengths = plan.lengths[replica.micro_batches[int(span["name"][1:])]]
                assert span["args"] == {
                    "tokens": lengths.sum(),
                    "sequences": len(lengths),
                    "longest": lengths.max(),
                }


def test_ranks_and_processes_are_in_order(plan: Plan, document: dict[str, Any]) -> None:
    places = {
        (event["name"], event["pid"], event["tid"]): event["args"]["sort_index"]
        for event in document["traceEvents"]
        if event["name"].endswith("_sort_index")
    }
    ranks = [rank for replica in plan.replicas for rank in replica.ranks]
    threads = {("thread_sort_index", process, rank): rank for process in (0, 1) for rank in ranks}
    assert places == threads | {("process_sort_index", process, 0): process for process in (0, 1)}


def test_measured_times_are_read_back(plan: Plan, document: dict[str, Any]) -> None:
    assert traced_step(document) == 7
    again = plan.measured_timeline(durations(plan, document, MEASURED))
    for spans, expected in zip(again, measured(plan), strict=True):
        assert [(span.stage, span.forward, span.micro_batch) for span in spans] == [
            (span.stage, span.forward, span.micro_batch) for span in expected
        ]
        assert [span.end_ms for span in spans] == pytest.approx([span.end_ms for span in expected])
