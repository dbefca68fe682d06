"""The comparison of context degrees: errors of derived schemes, and bounds below plans."""

import json
from types import ModuleType

import numpy as np
import pytest

from benches.loading import load_script
from helpers import at_least
from hydraulis import CostProfile, Planner
from hydraulis.planner import load_profile

BATCH = np.array([9000, 4000, 1500, 900, 400, 400, 200] * 4)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("context_degrees")


@pytest.fixture(scope="module")
def table() -> CostProfile:
    return load_profile("llama-32b-a800")


def test_a_scheme_derived_from_its_analytic_ratio_has_no_error(bench: ModuleType, table: CostProfile) -> None:
    assert table.model is not None
    analytic = CostProfile.analytic(table.model, bench.CLUSTER, table.device)
    own = at_least(10, bench.tensor_errors(analytic).values())
    assert own == pytest.approx([0.0] * len(own), abs=1e-9)
    # The measured ratio of two tensor degrees is not the analytic one.
    errors = bench.tensor_errors(table)
    assert 0.001 < max(map(abs, at_least(5, errors.values()))) < 0.2
    measured = json.loads(table.to_json())
    for entry in measured["schemes"]:
        if entry["scheme"] == "<tp16>":
            for field in bench.POWERS:
                entry[field] *= 2
    doubled = bench.tensor_errors(CostProfile.from_json(json.dumps(measured)))
    place = f"{table.name} <tp16> at 1,024"
    assert 1 + doubled[place] == pytest.approx((1 + errors[place]) / 2)
    assert "worst 24" in bench.error_report()


def test_plans_without_idle_ranks_are_no_longer(bench: ModuleType, table: CostProfile) -> None:
    context = table.with_context_degrees()
    pipelined = Planner(context, bench.CLUSTER, strategies=["8x<tp4,pp2>"]).plan(BATCH)
    full = Planner(bench.without_bubbles(context), bench.CLUSTER, strategies=["8x<tp4,cp2,full>"]).plan(BATCH)
    assert full.iteration_ms < pipelined.iteration_ms
    searched = bench.search_ms(context, [BATCH])
    assert 0.5 * searched < bench.free_groups_ms(context, BATCH) <= searched
