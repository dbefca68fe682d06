"""How evenly ranks computed, on timelines that are known."""

import pytest

from hydraulis.runtime.records.measured_times import RankBalance, rank_balance
from runtime.tiny import plan_for, planner_for


def test_without_a_pipeline_no_rank_waits_for_a_stage() -> None:
    plan = plan_for(2, "2x<1>", [20, 10])
    planner = planner_for(2, ["2x<1>"])
    timelines = planner.timeline(plan)
    busy = [sum(span.end_ms - span.start_ms for span in of_replica) for of_replica in timelines]
    found = rank_balance(plan, timelines)
    assert found.bubble == pytest.approx(0.0)
    assert found.imbalance == pytest.approx(max(busy) / (sum(busy) / 2))
    assert found.imbalance > 1.05


def test_in_a_pipeline_stages_wait_for_each_other() -> None:
    plan = plan_for(2, "1x<pp2>", [20])
    timelines = planner_for(2, ["1x<pp2>"]).timeline(plan)
    # One micro-batch: each of two equal stages computes half of the time.
    found = rank_balance(plan, timelines)
    assert found.bubble == pytest.approx(0.5)
    assert found.imbalance == pytest.approx(1.0)


def test_ranks_without_work_count_in_the_mean() -> None:
    plan = plan_for(4, "1x<tp2>", [20])
    assert rank_balance(plan, planner_for(4, ["1x<tp2>"]).timeline(plan)).imbalance == pytest.approx(2.0)


def test_unmeasured_times_are_zero() -> None:
    assert rank_balance(plan_for(2, "2x<1>", [20, 10]), []) == RankBalance(0.0, 0.0)
