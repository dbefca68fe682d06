"""One line of metrics.jsonl."""

import dataclasses
import json
import math

from hydraulis.runtime.metrics import StepMetrics


def made_up_metrics(step: int = 0, **changes: float | str) -> StepMetrics:
    values = {
        "loss": 5.5,
        "gradient_norm": 1.5,
        "learning_rate": 1e-3,
        "sequences": 3,
        "tokens": 1_000,
        "longest": 700,
        "strategy": "1x<tp2>+2x<1>",
        "planned_ms": 100.0,
        "lower_bound_ms": 90.0,
        "measured_ms": 110.0,
        "wall_ms": 250.0,
        "plan_ms": 1.5,
        "plan_wait_ms": 0.5,
        "transfer_ms": 20.0,
        "groups_ms": 0.5,
        "memory_bytes": 1 << 30,
        "replica_planned_ms": (100.0, 80.0),
        "replica_measured_ms": (110.0, 82.0),
    }
    return StepMetrics(step=step, **(values | changes))  # type: ignore[arg-type]


def test_a_line_is_one_json_object_with_every_field() -> None:
    metrics = made_up_metrics(4, loss=math.pi)
    line = metrics.to_json()
    assert "\n" not in line
    assert json.loads(line) == json.loads(json.dumps(dataclasses.asdict(metrics)))
    promised = {
        "step",
        "loss",
        "tokens",
        "strategy",
        "planned_ms",
        "measured_ms",
        "wall_ms",
        "plan_ms",
        "transfer_ms",
    }
    assert promised <= json.loads(line).keys()
    assert json.loads(line)["loss"] == math.pi


def test_tokens_per_second_are_on_the_wall() -> None:
    assert made_up_metrics(tokens=1_000, wall_ms=250.0).tokens_per_s == 4_000
