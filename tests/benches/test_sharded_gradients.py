"""The steps of sharded gradients: with a whole buffer the planner's, with two buckets rounds that wait."""

import json
from types import ModuleType

import numpy as np
import pytest

from benches.loading import load_script
from hydraulis import Cluster, Planner, Scheme
from hydraulis._core import Link, LinkRates
from hydraulis.planner import load_profile

PROFILE = "analytic:llama-7b-a800:A100-80GB"
FREE = [0.0] * 4


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("sharded_gradients")


@pytest.mark.parametrize(
    ("strategy", "rate"),
    [("16x<tp2>", 20.0), ("4x<tp8>", 20.0), ("2x<tp8>+8x<tp2>", 20.0), ("32x<1>", 10_000.0)],
)
def test_gradients_that_leave_once_take_the_planned_step(
    bench: ModuleType, strategy: str, rate: float
) -> None:
    profile, lengths = load_profile(PROFILE), np.array([4000, 2000, 1000, 500] * 40)
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=rate))
    plan = Planner(profile, Cluster(32, 8), strategies=[strategy], link=link).plan(lengths)
    assert plan.step_ms > 1.001 * plan.iteration_ms
    ours = bench.step_of(plan, profile, lengths, rate, is_sharded=False)
    assert ours - plan.iteration_ms == pytest.approx(plan.step_ms - plan.iteration_ms, rel=0.05)


def test_a_single_round_without_transfers_takes_the_computation(bench: ModuleType) -> None:
    assert bench.step([[6.0]], FREE, FREE, is_sharded=True) == pytest.approx(6.0)


def test_every_round_waits_for_the_link(bench: ModuleType) -> None:
    # Three rounds of four buckets of 5 ms, the first of which leaves once a quarter of a backward has run.
    assert bench.step([[6.0] * 3], FREE, [5.0] * 4, is_sharded=True) >= 2 + 1 + 3 * 4 * 5
    assert bench.step([[6.0] * 3], FREE, [5.0] * 4, is_sharded=False) == pytest.approx(2 * 6 + 2 + 1 + 4 * 5)


def test_a_replica_waits_in_a_round_for_the_slowest(bench: ModuleType) -> None:
    # The second replica's backwards end with those of the first, whose second micro-batch is short.
    uneven = bench.step([[12.0, 3.0], [3.0, 12.0]], FREE, FREE, is_sharded=True)
    assert uneven > 15.0 + 3.0
    assert bench.step([[12.0, 3.0], [3.0, 12.0]], FREE, FREE, is_sharded=False) == pytest.approx(15.0)


def test_gradients_of_two_buckets_stay(bench: ModuleType) -> None:
    profile = load_profile(PROFILE)
    sizes = bench.buckets(profile)
    saved = 4 * (sum(sizes) - 2 * max(sizes))
    cluster = Cluster(64, 8)
    entry = json.loads(profile.to_json())["schemes"][0]
    caps = [one.cap_tokens(Scheme("<1>"), cluster) for one in (profile, bench.sharded(profile))]
    more = caps[1] - caps[0]
    assert more == pytest.approx(saved / entry["activation_bytes_per_token"], abs=128)
