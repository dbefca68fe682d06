"""One line of metrics.jsonl."""

import dataclasses
import json
import math
import re

import pytest

from helpers import ROOT, at_least
from hydraulis.runtime.records.metrics import StepMetrics, shared_devices_note
from hydraulis.runtime.records.totals import Totals


def made_up_metrics(step: int = 0, **changes: float | str | tuple[int | None, ...] | None) -> StepMetrics:
    values: dict[str, object] = {
        "loss": 5.5,
        "gradient_norm": 1.5,
        "learning_rate": 1e-3,
        "sequences": 3,
        "tokens": 1_000,
        "longest": 700,
        "squares": 600_000,
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
        "rank_planned_bytes": (1_000, 1_100, None),
        "rank_peak_bytes": (1_250, None, 900),
        "tokens_per_s": 4_000.0,
        "mfu": None,
        "bubble": 0.05,
        "imbalance": 1.25,
        "replica_planned_ms": (100.0, 80.0),
        "replica_measured_ms": (110.0, 82.0),
        "ranks_per_device": 1,
        "rank_rates": (),
        "link_slowdowns": (1.0, 3.0),
        "moved": 0,
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


def test_memory_is_compared_where_both_are_known() -> None:
    metrics = made_up_metrics()
    assert metrics.rank_memory == [(1_000, 1_250)]
    assert Totals().memory is None
    other = dataclasses.replace(metrics, rank_peak_bytes=(800, 1_000, 700))
    found = Totals.of([metrics, other]).memory
    assert found is not None
    assert (found.planned_bytes, found.peak_bytes) == (1_000, 1_250)
    # 20 % too little, 25 % and 10 % too much.
    assert (found.median_error, found.worst_error) == pytest.approx((0.2, -0.2))


def test_tracked_values_omit_unknown_ones() -> None:
    tracked = made_up_metrics(measured_ms=0.0).tracked()
    assert "speed/mfu" not in tracked
    assert "plan/prediction_error" not in tracked
    tracked = made_up_metrics(mfu=0.4).tracked()
    assert tracked["speed/mfu"] == 0.4
    assert tracked["plan/prediction_error"] == pytest.approx(100 / 110 - 1)
    assert tracked["plan/strategy"] == "1x<tp2>+2x<1>"
    assert made_up_metrics(moved=3).tracked()["plan/moved"] == 3.0


def test_the_prediction_error_covers_the_measured_iterations() -> None:
    slow, fast, unmeasured = (made_up_metrics(measured_ms=measured) for measured in (125.0, 80.0, 0.0))
    assert Totals.of([slow, fast, unmeasured]).median_error == pytest.approx((0.2 + 0.25) / 2)
    assert Totals.of([unmeasured]).median_error is None


def test_the_page_of_metrics_explains_every_field() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for field in at_least(20, dataclasses.fields(StepMetrics)):
        assert re.search(rf"^\| `{field.name}`.*\|.+\|$", text, re.MULTILINE), field.name
    for name in at_least(15, made_up_metrics(mfu=0.4).tracked()):
        assert f"`{name}`" in text, name


def test_a_line_is_read_as_it_was_written() -> None:
    metrics = made_up_metrics(4, loss=math.pi, mfu=0.25)
    assert StepMetrics.from_json(metrics.to_json()) == metrics


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(StepMetrics)])
def test_a_missing_field_or_one_of_another_type_is_refused(field: str) -> None:
    values = json.loads(made_up_metrics(4).to_json())
    for wrong in (values | {field: {}}, {name: value for name, value in values.items() if name != field}):
        with pytest.raises(ValueError, match=field):
            StepMetrics.from_json(json.dumps(wrong))


@pytest.mark.parametrize(
    "change",
    [
        {"loss": math.nan},
        {"wall_ms": 0.0},
        {"step": 0},
        {"rank_peak_bytes": (0, 1, 2)},
        {"rank_peak_bytes": (1_000,)},
        {"ranks_per_device": 0},
        {"rank_rates": (1.0, 0.0)},
        {"link_slowdowns": (1.0, 0.5)},
    ],
)
def test_a_line_that_no_run_records_is_refused(change: dict[str, object]) -> None:
    metrics = made_up_metrics(3)
    assert StepMetrics.from_json(metrics.to_json()) == metrics
    with pytest.raises(ValueError, match="step"):
        StepMetrics.from_json(dataclasses.replace(metrics, **change).to_json())  # type: ignore[arg-type]


def test_a_run_on_shared_devices_is_marked() -> None:
    alone, shared = made_up_metrics(1), made_up_metrics(2, ranks_per_device=4)
    assert json.loads(shared.to_json())["ranks_per_device"] == 4
    assert shared.tracked()["speed/ranks_per_device"] == 4.0
    assert "speed/ranks_per_device" not in alone.tracked()
    assert Totals.of([alone]).ranks_per_device == 1
    assert Totals.of([alone, shared, alone]).ranks_per_device == 4
    assert "4 ranks shared a device" in shared_devices_note(4)
    assert shared_devices_note(1) == ""
