"""The estimate of shorter bubbles: the simulated pipelines, and the ways' order."""

from types import ModuleType

import numpy as np
import pytest

from benches.loading import load_script
from hydraulis import CostProfile, Planner


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("pipeline_bubbles")


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("number", [8, 16])
def test_equal_micro_batches_take_the_published_times(bench: ModuleType, stages: int, number: int) -> None:
    # With equal parts of 1, 1F1B waits (p - 1) (F + B + W), and ZB-H1 (p - 1) (F + B - W).
    equal = [bench.Times(1.0, 1.0, 1.0)] * number
    assert bench.makespan(stages, equal, split=False) == 3 * number + 3 * (stages - 1)
    assert bench.makespan(stages, equal, split=True) == 3 * number + stages - 1


def test_a_pipeline_under_1f1b_takes_the_planned_time(bench: ModuleType) -> None:
    profile = CostProfile.preset("llama-32b-a800")
    batch = np.array([4000, 2500, 900, 400, 400, 200] * 16)
    plan = Planner(profile, bench.CLUSTER, strategies=["4x<tp4,pp4>"]).plan(batch)
    (pipeline,) = (one for name, one in bench.pipelines_of(profile).items() if name == "<tp4,cp4,full>")
    for replica in plan.replicas:
        times = [pipeline.times(plan.lengths[pack].tolist()) for pack in replica.micro_batches]
        assert bench.makespan(4, times, split=False) == pytest.approx(replica.predicted_ms)
        assert bench.makespan(4, times, split=True) < replica.predicted_ms


def test_no_way_is_longer_than_1f1b_or_shorter_than_no_waits(bench: ModuleType) -> None:
    batch = np.array([4000, 2500, 900, 400, 400, 200] * 16)
    found = bench.compare(CostProfile.preset("llama-32b-a800"), [batch])
    for way in ("split", "chunks"):
        even, most = found[f"{way}, even"], found[f"{way}, found"]
        assert even <= most <= found["1F1B"]
        assert even >= 0.98 * found["no waits"]


def test_a_plan_as_packed_gains_the_part_of_its_pipelines(bench: ModuleType) -> None:
    profile = CostProfile.preset("llama-32b-a800")
    batch = np.array([4000, 2500, 900, 400, 400, 200] * 16)

    def share(strategy: str) -> float:
        plan = Planner(profile, bench.CLUSTER, strategies=[strategy]).plan(batch)
        return float(bench.split_as_packed(plan, profile) / plan.iteration_ms)

    assert share("16x<tp4>") == pytest.approx(1.0)
    # More stages wait longer; pipelines of a fourth of the ranks shorten at most that part.
    assert 0.7 < share("4x<tp4,pp4>") < share("8x<tp4,pp2>") < 1.0
    assert 0.75 < share("12x<tp4>+2x<tp4,pp2>") < 1.0
