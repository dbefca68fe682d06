"""Totals of a run take no more memory for more steps, and lose no sum."""

import statistics

import pytest

from hydraulis.runtime.memory import prediction
from hydraulis.runtime.memory.prediction import EvenSample
from hydraulis.runtime.records.totals import Totals
from runtime.records.test_metrics import made_up_metrics


@pytest.mark.parametrize(
    ("count", "stride", "kept"), [(3, 1, 3), (4, 1, 4), (5, 2, 3), (8, 2, 4), (9, 4, 3), (1_000, 256, 4)]
)
def test_a_sample_is_evenly_spread_and_bounded(
    monkeypatch: pytest.MonkeyPatch, count: int, stride: int, kept: int
) -> None:
    monkeypatch.setattr(prediction, "MOST_VALUES", 4)
    sample = EvenSample()
    for value in range(count):
        sample.add(value)
    assert (sample.stride, len(sample.values)) == (stride, kept)
    assert sample.values.tolist() == list(range(0, count, stride))


def test_a_long_run_has_exact_sums_and_the_medians_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "MOST_VALUES", 8)
    metrics = [
        made_up_metrics(step, plan_ms=float(step % 7), tokens=step, mfu=step / 100, wall_ms=10.0)
        for step in range(1, 101)
    ]
    totals = Totals.of(metrics)
    assert (totals.steps, totals.tokens, totals.wall_ms) == (100, 5_050, 1_000.0)
    assert totals.first is metrics[0]
    assert totals.last is metrics[-1]
    assert totals.tokens_per_s == 5_050
    assert totals.mfu == pytest.approx(0.505)
    assert totals.plan_ms == statistics.median(one.plan_ms for one in metrics[::16])
    assert len(totals.planned.values) <= 8
