from typing import Literal

import numpy as np
import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, Planner, SearchBudget

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
LENGTHS = np.random.default_rng(5).lognormal(6.2, 1.2, 300).astype(int).clip(1, 32_768)
NOTHING = SearchBudget(refinements=0, candidates=0, dual_solves=0, exchanges=0)


@pytest.mark.parametrize("strategies", [None, "search"])
def test_a_budget_of_zero_still_gives_a_valid_plan(strategies: Literal["search"] | None) -> None:
    planner = Planner(PROFILE, CLUSTER, strategies=strategies, budget=NOTHING)
    online = Planner(PROFILE, CLUSTER, strategies=strategies)
    plan, longer = planner.plan(LENGTHS), online.plan(LENGTHS)
    assert online.check(plan, LENGTHS) == []
    assert plan.lower_bound_ms <= longer.iteration_ms <= plan.iteration_ms
    assert plan.lower_bound_ms <= longer.lower_bound_ms
    assert plan.gap > longer.gap
    assert strategies == "search" or "until its budget of work was used up" in plan.explain()
    window = planner.plan_lookahead([LENGTHS, LENGTHS[:100]], max_delay=1)
    assert online.check_lookahead(window, [LENGTHS, LENGTHS[:100]], max_delay=1) == []


def test_the_default_is_online_and_prove_is_proof() -> None:
    online, proof = (
        Planner(PROFILE, CLUSTER, strategies="search", budget=budget)
        for budget in (SearchBudget.ONLINE, SearchBudget.PROOF)
    )
    assert online.plan(LENGTHS) == Planner(PROFILE, CLUSTER, strategies="search").plan(LENGTHS)
    assert proof.plan(LENGTHS) == Planner(PROFILE, CLUSTER, strategies="search", prove=True).plan(LENGTHS)
    fewer = Planner(PROFILE, CLUSTER, strategies="search", budget=SearchBudget(dual_solves=1))
    assert proof.plan(LENGTHS).lower_bound_ms > fewer.plan(LENGTHS).lower_bound_ms


def test_absent_limits_are_those_of_online() -> None:
    assert SearchBudget() == SearchBudget.ONLINE
    assert SearchBudget(dual_solves=5) != SearchBudget.ONLINE
    budget = SearchBudget(dual_solves=5)
    assert (budget.dual_solves, budget.candidates) == (5, SearchBudget.ONLINE.candidates)
    assert repr(NOTHING) == "SearchBudget(refinements=0, candidates=0, dual_solves=0, exchanges=0)"


@pytest.mark.parametrize("field", ["refinements", "candidates", "dual_solves", "exchanges"])
def test_no_limit_is_negative(field: str) -> None:
    with refused("argument_invalid", field, -1):
        SearchBudget(**{field: -1})


def test_budget_and_prove_are_not_given_together() -> None:
    with refused("argument_invalid", "budget", "prove=True"):
        Planner(PROFILE, CLUSTER, budget=NOTHING, prove=True)
