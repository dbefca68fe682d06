"""Writes one iteration as a Chrome trace: its timelines rank by rank, and its transfers.

The format is the Trace Event Format's JSON object form, which Perfetto and chrome://tracing open.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hydraulis._core import Plan, Replica, Span, TransferSpan

Timelines = Sequence[Sequence[Span]]
PLANNED, MEASURED = "planned", "measured"


def chrome_trace(
    plan: Plan,
    timelines: Mapping[str, Timelines],
    step: int | None = None,
    transfer_spans: Sequence[TransferSpan] = (),
) -> str:
    """Return timelines of a plan's replicas as JSON; a timeline is a process, and a rank is a thread of it.

    Args:
        plan: Plan of the iteration.
        timelines: Timelines by name, `planned` or `measured`, each with one timeline per replica.
        step: Number of a run's iteration, counted from 1, stored in `otherData`; None outside a run.
        transfer_spans: Transfer spans of the first timeline; parameters and gradients have one thread each,
            shown above the ranks.
    """
    events: list[dict[str, Any]] = []
    for process, (name, of_replicas) in enumerate(timelines.items()):
        events += _named("process", process, 0, f"{name}: {plan.strategy}", process)
        if process == 0:
            events += _transfers(plan, transfer_spans)
        for number, (replica, spans) in enumerate(zip(plan.replicas, of_replicas, strict=True)):
            contents = [_content(plan, ids) for ids in replica.micro_batches]
            for stage, ranks in enumerate(replica.stages):
                for rank in ranks:
                    events += _named("thread", process, rank, _label(number, replica, stage, rank), rank)
                    events += [
                        _complete(process, rank, span, contents[span.micro_batch])
                        for span in spans
                        if span.stage == stage
                    ]
    document: dict[str, Any] = {"traceEvents": events, "displayTimeUnit": "ms"}
    if step is not None:
        document["otherData"] = {"step": step}
    return json.dumps(document)


def traced_step(document: dict[str, Any]) -> int:
    """Return the step of a trace that a run wrote.

    Raises:
        KeyError: It has no step.
        TypeError: It has another form.
        ValueError: The step is no number of an iteration.
    """
    step: int = document["otherData"]["step"]
    if type(step) is not int or step < 1:
        message = f"step {step} is no number of an iteration"
        raise ValueError(message)
    return step


def durations(plan: Plan, document: dict[str, Any], timeline: str) -> list[list[list[float]]]:
    """Return the duration of each computation in a timeline, the input of `Plan.measured_timeline`.

    Args:
        plan: Plan of the traced step.
        document: Trace written by `chrome_trace`.
        timeline: Name of the timeline, `planned` or `measured`.

    Returns:
        Milliseconds by replica, stage and computation.
    """
    named = {
        event["args"]["name"].partition(":")[0]: event["pid"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }
    process = named[timeline]
    by_rank: dict[int, list[float]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            by_rank.setdefault(event["tid"], []).append(event["dur"] / 1e3)
    # All ranks of a stage show the time of the slowest one.
    return [[by_rank.get(ranks[0], []) for ranks in replica.stages] for replica in plan.replicas]


def _transfers(plan: Plan, transfer_spans: Sequence[TransferSpan]) -> list[dict[str, Any]]:
    """Return the events of the transfer threads, which are numbered after the ranks."""
    events: list[dict[str, Any]] = []
    for place, kind in enumerate(("parameters", "gradients")):
        moved = [span for span in transfer_spans if span.kind == kind and span.end_ms > span.start_ms]
        if moved:
            thread = plan.cluster.gpus + place
            events += _named("thread", 0, thread, f"transfer of {kind}", place - 2)
            events += [
                _event(
                    0,
                    thread,
                    (f"{kind} of layer group {span.layer_group}", "transfer"),
                    span,
                    {"layer_group": span.layer_group},
                )
                for span in moved
            ]
    return events


def _named(kind: str, process: int, thread: int, name: str, place: int) -> list[dict[str, Any]]:
    """Return the events that set the name and the sort position of a process or a thread."""
    return [
        {"ph": "M", "name": f"{kind}_{what}", "pid": process, "tid": thread, "args": {what: value}}
        for what, value in (("name", name), ("sort_index", place))
    ]


def _label(number: int, replica: Replica, stage: int, rank: int) -> str:
    return f"rank {rank}: replica {number} {replica.scheme}, stage {stage}"


def _content(plan: Plan, sequences: Sequence[int]) -> dict[str, int]:
    """Return the token count, sequence count and longest sequence of a micro-batch."""
    lengths = plan.lengths[list(sequences)]
    longest = int(lengths.max(initial=0))
    return {"tokens": int(lengths.sum()), "sequences": len(lengths), "longest": longest}


def _complete(process: int, thread: int, span: Span, content: dict[str, int]) -> dict[str, Any]:
    kind = "forward" if span.forward else "backward"
    return _event(process, thread, (f"{kind[0].upper()}{span.micro_batch}", kind), span, content)


def _event(
    process: int, thread: int, named: tuple[str, str], span: Span | TransferSpan, content: dict[str, int]
) -> dict[str, Any]:
    """Return the event of a span, with its name and category."""
    name, category = named
    # The format's unit is microseconds.
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": 1e3 * span.start_ms,
        "dur": 1e3 * (span.end_ms - span.start_ms),
        "args": content,
    }
