"""One iteration as a Chrome trace: the predicted timeline above the measured one, rank by rank.

The format is the Trace Event Format's JSON object form, which Perfetto and chrome://tracing open.
"""

import json
from collections.abc import Sequence
from typing import Any

from hydraulis._core import Plan, Span

Timelines = Sequence[Sequence[Span]]


def chrome_trace(plan: Plan, planned: Timelines, measured: Timelines) -> str:
    """Write the timelines of a plan's replicas as JSON.

    Args:
        plan: of the iteration.
        planned: by replica, as the cost model predicts them.
        measured: by replica, with the durations that were measured.
    """
    events: list[dict[str, Any]] = []
    for process, (name, timelines) in enumerate((("planned", planned), ("measured", measured))):
        events.append(_name("process_name", process, 0, f"{name}: {plan.strategy}"))
        for number, (replica, spans) in enumerate(zip(plan.replicas, timelines, strict=True)):
            for stage, ranks in enumerate(replica.stages):
                for rank in ranks:
                    label = f"rank {rank}: replica {number} {replica.scheme}, stage {stage}"
                    events.append(_name("thread_name", process, rank, label))
                    events += [_complete(process, rank, span) for span in spans if span.stage == stage]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(process: int, thread: int, span: Span) -> dict[str, Any]:
    # The format counts in microseconds.
    return {
        "ph": "X",
        "name": f"{'F' if span.forward else 'B'}{span.micro_batch}",
        "cat": "forward" if span.forward else "backward",
        "pid": process,
        "tid": thread,
        "ts": 1e3 * span.start_ms,
        "dur": 1e3 * (span.end_ms - span.start_ms),
    }
