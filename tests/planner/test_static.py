"""The best static strategy for given batches."""

import pytest

from hydraulis import Cluster, Planner
from hydraulis.config.kinds import MemoryRule
from hydraulis.planner.static import StaticComparison
from profiles import made_up_profile

CAPS = {"<1>": 512, "<tp2>": 1024, "<tp4>": 2048}
CLUSTER = Cluster(gpus=4, gpus_per_node=4)
STRATEGIES = ["4x<1>", "1x<tp2>+2x<1>", "2x<tp2>", "1x<tp4>"]
BATCHES = ([500, 400, 300, 20, 9], [900, 7, 7, 7], [30] * 40)


def comparison(longest: int) -> StaticComparison:
    return StaticComparison.for_strategies(made_up_profile(CAPS), CLUSTER, STRATEGIES, longest)


def alone(strategy: str, batch: list[int]) -> float:
    return Planner(made_up_profile(CAPS), CLUSTER, strategies=[strategy]).plan(batch).iteration_ms


def add_all(static: StaticComparison) -> StaticComparison:
    for batch in BATCHES:
        static.add(batch)  # type: ignore[arg-type]
    return static


@pytest.mark.parametrize(("longest", "admitting"), [(512, 4), (513, 3), (1024, 3), (1025, 1), (2048, 1)])
def test_only_strategies_that_admit_the_longest_sequence_count(longest: int, admitting: int) -> None:
    static = comparison(longest)
    assert set(static._totals) == set(STRATEGIES[4 - admitting :])


@pytest.mark.parametrize(("memory", "admitting"), [("per_micro_batch", set()), ("in_flight", {"2x<pp2>"})])
def test_pipelines_admit_more_under_the_in_flight_limit(memory: MemoryRule, admitting: set[str]) -> None:
    profile = made_up_profile({"<1>": 512, "<pp2>": 512})
    static = StaticComparison.for_strategies(profile, CLUSTER, ["4x<1>", "2x<pp2>"], 1024, memory=memory)
    assert set(static._totals) == admitting


def test_the_best_is_the_least_total_over_all_batches() -> None:
    best = add_all(comparison(1000)).best()
    totals = {strategy: sum(alone(strategy, batch) for batch in BATCHES) for strategy in STRATEGIES[1:]}
    assert best is not None
    assert best.strategy == min(totals, key=lambda strategy: totals[strategy])
    assert best.planned_ms == pytest.approx(totals[best.strategy])
    assert len(set(totals.values())) == 3


def test_a_choice_for_each_batch_is_never_worse() -> None:
    best = add_all(comparison(1000)).best()
    planner = Planner(made_up_profile(CAPS), CLUSTER, strategies=STRATEGIES[1:])
    assert best is not None
    # Equal within 0.1 % is equal to the planner.
    assert sum(planner.plan(batch).iteration_ms for batch in BATCHES) <= best.planned_ms * 1.001


def test_no_strategy_is_chosen_if_none_admits_the_longest_sequence() -> None:
    static = comparison(2049)
    static.add([5, 3])  # type: ignore[arg-type]
    assert static.best() is None
