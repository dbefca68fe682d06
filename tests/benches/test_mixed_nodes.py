"""The comparison of uses of mixed nodes: plans are judged by the profile of each rank's own device."""

from types import ModuleType

import numpy as np
import pytest

from benches.loading import load_script
from hydraulis import Cluster, Planner
from hydraulis.planner.profile_document import with_scaled_times
from profiles import made_up_profile

PROFILE = made_up_profile({"<1>": 64, "<tp2>": 128, "<pp2>": 64})
LENGTHS = [60, 31, 30, 22, 19, 17, 9, 9, 5, 2] * 3


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("mixed_nodes")


@pytest.mark.parametrize("strategy", ["4x<1>", "2x<tp2>", "2x<pp2>", "1x<tp2>+1x<pp2>"])
def test_devices_that_are_as_planned_take_the_planned_time(bench: ModuleType, strategy: str) -> None:
    fast = with_scaled_times(PROFILE, lambda _: 0.5)
    cluster = Cluster(4, 2, rates=[1.0, 1.0, 2.0, 2.0])
    plan = Planner(PROFILE, cluster, strategies=[strategy]).plan(LENGTHS)
    clocks = [bench.OwnClock(PROFILE)] * 2 + [bench.OwnClock(fast)] * 2
    assert bench.judged_ms(plan, clocks) == pytest.approx(plan.iteration_ms)
    # If all nodes are of the slow kind, the plan takes as long as the replicas that were to be fast.
    assert bench.judged_ms(plan, clocks[:2] * 2) > 1.3 * plan.iteration_ms


def test_a_stage_takes_the_time_of_its_slowest_rank(bench: ModuleType) -> None:
    slow = with_scaled_times(PROFILE, lambda _: 3.0)
    plan = Planner(PROFILE, Cluster(2, 2), strategies=["1x<tp2>"]).plan(LENGTHS)
    clocks = [bench.OwnClock(PROFILE), bench.OwnClock(slow)]
    assert bench.judged_ms(plan, clocks) == pytest.approx(3 * plan.iteration_ms)


def test_batches_are_cut_in_the_order_of_the_lengths(bench: ModuleType) -> None:
    batches = bench.draw(np.array([5, 90, 7, 3, 40, 6, 8, 9]), 50, 2, 45)
    assert [batch.tolist() for batch in batches] == [[5, 45], [7, 3, 40]]


def test_a_use_that_does_not_admit_a_sequence_has_no_figures(bench: ModuleType) -> None:
    planner = Planner(PROFILE, Cluster(2, 2), strategies=["2x<1>"])
    assert bench.run(planner, [bench.OwnClock(PROFILE)] * 2, [np.array([100])]) is None
