import json

import numpy as np
import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, InvalidInputError, Plan, Planner

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)


def limited(most: int) -> Planner:
    return Planner(PROFILE, CLUSTER, strategies="search", max_strategies=most)


def batches() -> list[np.ndarray]:
    lengths = np.random.default_rng(1).lognormal(6.2, 1.2, (12, 200)).astype(int).clip(1, 40_000)
    return list(lengths)


def run(planner: Planner) -> list[Plan]:
    plans: list[Plan] = []
    for lengths in batches():
        plans.append(planner.plan(lengths, used=[plan.strategy for plan in plans]))
    return plans


def test_a_run_stays_within_its_limit_and_can_be_resumed() -> None:
    free = Planner(PROFILE, CLUSTER, strategies="search")
    assert len({free.plan(lengths).strategy for lengths in batches()}) > 3
    plans = run(limited(3))
    assert len({plan.strategy for plan in plans}) <= 3
    assert limited(3).max_strategies == 3
    recorded = [json.loads(plan.to_json())["strategy"] for plan in plans]
    for place in (1, 5, 11):
        assert limited(3).plan(batches()[place], used=recorded[:place]) == plans[place]


def test_a_run_may_start_with_a_proposal() -> None:
    used = ["1x<tp16>+12x<tp4>", "16x<tp4>", "16x<tp4>"]
    assert limited(2).plan([900] * 20, used=used).strategy in used


@pytest.mark.parametrize(
    ("planner", "used", "code"),
    [
        (limited(2), None, "argument_invalid"),
        (Planner(PROFILE, CLUSTER), [], "argument_invalid"),
        (limited(1), ["16x<tp4>", "4x<tp16>"], "argument_invalid"),
        (limited(1), ["16x<tp4"], "strategy_invalid"),
    ],
)
def test_inconsistent_limits_and_strategies_are_refused(
    planner: Planner, used: list[str] | None, code: str
) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        planner.plan([900], used=used)
    assert refusal.value.code == code


def test_a_limit_is_at_least_one() -> None:
    with refused("argument_invalid", "max_strategies", 0):
        limited(0)
