"""The comparison of context degrees: derived schemes keep their ratios, and bounds are below plans."""

import json
from types import ModuleType

import numpy as np
import pytest

from benches.loading import load_script
from hydraulis import CostProfile, Planner
from hydraulis.planner import load_profile

BATCH = np.array([9000, 4000, 1500, 900, 400, 400, 200] * 4)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("context_degrees")


@pytest.fixture(scope="module")
def table() -> CostProfile:
    return load_profile("llama-32b-a800")


def test_a_derived_scheme_keeps_the_analytic_ratio(bench: ModuleType, table: CostProfile) -> None:
    context = bench.with_context(table)
    assert table.model is not None
    analytic = CostProfile.analytic(table.model, bench.CLUSTER, table.device)

    def entries(profile: CostProfile) -> dict[str, dict[str, float]]:
        return {entry["scheme"]: entry for entry in json.loads(profile.to_json())["schemes"]}

    own, base = entries(context), entries(analytic)
    for field in ("quadratic_ms_per_token2", "linear_ms_per_token", "fixed_ms"):
        ratio = base["<tp8,cp2>"][field] / base["<tp8>"][field]
        assert own["<tp8,cp2>"][field] == pytest.approx(ratio * entries(table)["<tp8>"][field])
    assert {name: own[name] for name in table.schemes} == entries(table)


def test_plans_without_idle_ranks_are_no_longer(bench: ModuleType, table: CostProfile) -> None:
    context = bench.with_context(table)
    pipelined = Planner(context, bench.CLUSTER, strategies=["8x<tp4,pp2>"]).plan(BATCH)
    full = Planner(bench.without_bubbles(context), bench.CLUSTER, strategies=["8x<tp4,cp2,full>"]).plan(BATCH)
    assert full.iteration_ms < pipelined.iteration_ms
    searched = bench.search_ms(context, [BATCH])
    assert 0.5 * searched < bench.free_groups_ms(context, BATCH) <= searched
