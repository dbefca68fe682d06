"""Clusters whose ranks differ in speed or memory, from Python."""

import pickle

import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, InvalidInputError, Plan, Planner

PROFILE = CostProfile.preset("llama-32b-a800")
RATES = [1.0] * 22 + [0.5] + [1.0] * 41
LENGTHS = [600 + 150 * (i % 11) for i in range(400)]


def test_a_slow_rank_is_in_the_last_replica_with_less_work() -> None:
    slow = Cluster(gpus=64, gpus_per_node=8, rates=RATES)
    planner = Planner(PROFILE, slow, strategies=["16x<tp4>"])
    plan = planner.plan(LENGTHS)
    assert planner.check(plan, LENGTHS) == []
    last = plan.replicas[-1]
    assert 22 in last.ranks
    tokens = [sum(LENGTHS[i] for ids in replica.micro_batches for i in ids) for replica in plan.replicas]
    assert 0.4 < tokens[-1] / (sum(tokens[:-1]) / 15) < 0.6
    usual = Planner(PROFILE, Cluster(64, 8), strategies=["16x<tp4>"]).plan(LENGTHS)
    assert 1.0 < plan.iteration_ms / usual.iteration_ms < 1.1


def test_rates_and_memory_stay_with_plans_and_copies() -> None:
    memory = [80 << 30] * 63 + [96 << 30]
    mixed = Cluster(64, 8, rates=RATES, memory_bytes=memory)
    assert (mixed.rates, mixed.memory_bytes) == (RATES, memory)
    plan = Planner(PROFILE, mixed, strategies=["16x<tp4>"]).plan(LENGTHS)
    assert Plan.from_json(plan.to_json()).cluster == mixed == pickle.loads(pickle.dumps(mixed))
    assert "rates=[1.0" in repr(mixed)
    assert eval(repr(mixed)) == mixed


def test_equal_ranks_of_rate_one_are_the_default() -> None:
    usual = Cluster(4, 4, rates=[1.0] * 4)
    assert usual == Cluster(4, 4)
    assert usual.rates is None
    assert repr(usual) == "Cluster(gpus=4, gpus_per_node=4)"


@pytest.mark.parametrize(
    ("named", "number"),
    [
        ({"rates": [1.0] * 3}, "3 values"),
        ({"rates": [1.0, 0.0, 1.0, 1.0]}, "rank 1 has rate 0"),
        ({"rates": [1.0, 1.0, float("nan"), 1.0]}, "rank 2 has rate NaN"),
        ({"memory_bytes": [1 << 30] * 5}, "5 values"),
        ({"memory_bytes": [1 << 30, 0, 1 << 30, 1 << 30]}, "rank 1 has 0 bytes"),
    ],
)
def test_values_outside_their_limits_are_refused(named: dict[str, list[float]], number: str) -> None:
    with refused("argument_invalid", number, kind=InvalidInputError):
        Cluster(4, 4, **named)  # type: ignore[arg-type]
