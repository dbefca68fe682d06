"""Planners side by side, on the same batches and under the same conditions."""

from dataclasses import replace

import numpy as np
import pytest

from core.links import link
from helpers import refused
from hydraulis import Cluster, Link, LinkRates, Network, Planner, Scheme, Strategy
from hydraulis.planner import load_profile
from hydraulis.planner.compare import PARTS, ComparisonSetup, best_static, cheapest_work, compare
from hydraulis.planner.profile_document import fitted_times
from hydraulis.planner.strategies import homogeneous_strategies
from profiles import made_up_profile

CAPS = {"<1>": 60, "<tp2>": 150, "<tp4>": 400, "<pp2>": 90, "<tp3>": 200}
PROFILE = made_up_profile(CAPS)
CLUSTER = Cluster(gpus=8, gpus_per_node=4)
BATCHES = [np.array(lengths) for lengths in ([40] * 20, [380, 20, 20, 9], [140, 130, 60, 33, 20, 8, 8, 7])]
SETTING = ComparisonSetup(
    profile=PROFILE, cluster=CLUSTER, batches=BATCHES, listed=["8x<1>", "1x<tp4>+4x<1>"]
)


def schemes(strategy: str) -> set[str]:
    return {str(scheme) for scheme in Strategy(strategy).schemes}


def test_homogeneous_strategies_fill_the_cluster_as_far_as_nodes_permit() -> None:
    # Three ranks of a node of four are one <tp3>: two of them fit, not the 2 2/3 that eight ranks would hold.
    assert homogeneous_strategies(PROFILE, CLUSTER) == ["8x<1>", "4x<tp2>", "2x<tp4>", "4x<pp2>", "2x<tp3>"]


def test_the_best_static_strategy_is_the_fastest_that_admits_the_longest_sequence() -> None:
    assert best_static(SETTING) == "2x<tp4>"
    short = ComparisonSetup(profile=PROFILE, cluster=CLUSTER, batches=[BATCHES[0], BATCHES[2]])
    totals = {
        strategy: sum(
            Planner(PROFILE, CLUSTER, strategies=[strategy]).plan(batch).iteration_ms
            for batch in short.batches
        )
        for strategy in ("4x<tp2>", "2x<tp4>", "2x<tp3>")
    }
    assert best_static(short) == min(totals, key=lambda name: totals[name])


def test_searches_under_one_kind_or_all_have_no_layer_plans() -> None:
    batches = [np.array([20_000] * 4 + [4_000] * 20)]
    profile = load_profile("analytic:llama-7b-a800:A100-40GB,none,full").with_layer_plans(2)
    setting = ComparisonSetup(profile=profile, cluster=CLUSTER, batches=batches)
    names = ["full", "uniform", "search"]
    full, uniform, search = compare(setting, names)
    assert [one.name for one in (full, uniform, search)] == names
    kinds = [{Scheme(text).checkpointing for text in one.stage_memory} for one in (full, uniform, search)]
    assert kinds[0] == {"full"}
    assert kinds[1] <= {"none", "full"}
    assert any(":" in kind for kind in kinds[2])
    assert search.mean_ms < uniform.mean_ms <= full.mean_ms
    with refused("profile_invalid", "'selective'"):
        compare(setting, ["selective"])


def test_searches_without_copies_or_with_copies_alone() -> None:
    profile = load_profile(
        "analytic:llama-7b-a800:A100-40GB,none,full,offload,full-offload"
    ).with_layer_plans(2)
    setting = ComparisonSetup(
        profile=profile, cluster=CLUSTER, batches=[np.array([20_000] * 4 + [4_000] * 20)]
    )
    names = ["recompute", "uniform", "offload", "full-offload"]
    by_name = {one.name: one for one in compare(setting, names)}
    kinds = {name: {Scheme(text).checkpointing for text in one.stage_memory} for name, one in by_name.items()}
    assert not any("offload" in kind for name in ("recompute", "uniform") for kind in kinds[name])
    assert any(":" in kind for kind in kinds["recompute"])
    assert kinds["offload"] == {"offload"}
    assert kinds["full-offload"] == {"full-offload"}


def test_searches_with_sharding_count_the_traffic_of_each_micro_batch() -> None:
    profile = load_profile("analytic:llama-7b-a800:A100-40GB,none,full")
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=50.0))
    batches = [np.array([6_000] * 12 + [4_000] * 20)]
    setting = ComparisonSetup(profile=profile, cluster=CLUSTER, batches=batches, link=link, actual_link=link)
    names = ["search", "sharded-gradients", "sharded-parameters"]
    whole, gradients, parameters = compare(setting, names)
    assert [one.name for one in (whole, gradients, parameters)] == names
    sharded = (profile.with_sharding("gradients"), profile.with_sharding("parameters"))
    for one, of_kind in zip((gradients, parameters), sharded, strict=True):
        planner = Planner(of_kind, CLUSTER, strategies="search", link=link)
        assert one.step_ms == pytest.approx([planner.plan(batch).step_ms for batch in batches])
    resident = [
        min(stages[0].resident_bytes for stages in one.stage_memory.values())
        for one in (whole, gradients, parameters)
    ]
    assert resident == sorted(resident, reverse=True)
    assert resident[2] < 0.5 * resident[0]
    with refused("profile_invalid", "sharding"):
        compare(replace(setting, profile=sharded[0]), ["sharded-parameters"])


def test_each_planner_under_test_runs_every_batch() -> None:
    said: list[tuple[str, int, int]] = []
    names = ["static", "list", "search", "2x<tp4>"]
    static, listed, search, kept = compare(SETTING, names, lambda *report: said.append(report))
    assert static.name == "static 2x<tp4>"
    assert [one.name for one in (listed, search, kept)] == ["list", "search", "2x<tp4>"]
    assert static.iteration_ms == kept.iteration_ms
    planner = Planner(PROFILE, CLUSTER, strategies="search")
    assert search.iteration_ms == pytest.approx([planner.plan(batch).iteration_ms for batch in BATCHES])
    assert search.mean_ms <= listed.mean_ms
    assert set(listed.strategies) <= {"8x<1>", "1x<tp4>+4x<1>"}
    for one in (static, listed, search):
        assert one.strategies.total() == len(one.iteration_ms) == 3
        assert sum(one.parts_ms.values()) == pytest.approx(sum(one.iteration_ms))
        assert one.step_ms == one.iteration_ms
        assert (one.transfer_ms, one.overlapped_share) == (0, 1)
        assert one.utilisation == pytest.approx(one.parts_ms["compute"] / sum(one.iteration_ms))
        assert tuple(one.parts_ms) == PARTS
        assert 0 < one.needed_ms <= one.parts_ms["compute"]
        assert {scheme for text in one.strategies for scheme in schemes(text)} == set(one.stage_memory)
    steps = ["planning under each static strategy", *(f"simulating {name}" for name in names)]
    assert said == [(step, done, 3) for step in steps for done in range(3)]


def test_the_least_time_is_that_of_the_scheme_with_least_rank_time() -> None:
    of = cheapest_work(PROFILE)
    for length in (1, 100, 1000):
        times = [
            one.scheme.ranks * (one.quadratic_ms_per_token2 * length**2 + one.linear_ms_per_token * length)
            for one in fitted_times(PROFILE)
        ]
        assert of(np.array([length, length])) == pytest.approx(2 * min(times))
    wide, search = compare(SETTING, ["1x<tp4>", "search"])
    assert wide.needed_ms == search.needed_ms == pytest.approx(sum(map(of, BATCHES)) / CLUSTER.gpus)
    assert wide.needed_share < search.needed_share


def test_memory_is_the_peak_of_each_stage() -> None:
    (one,) = compare(SETTING, ["1x<tp4>+1x<pp2>"])
    planner = Planner(PROFILE, CLUSTER, strategies=["1x<tp4>+1x<pp2>"])
    runs = [planner.simulate(planner.plan(batch)) for batch in BATCHES]
    found = {}
    for place, scheme in enumerate(("<tp4>", "<pp2>")):
        by_stage = zip(*(run.stages[place] for run in runs), strict=True)
        found[scheme] = [max(stage.memory.total_bytes for stage in stages) for stages in by_stage]
    held = {scheme: [memory.total_bytes for memory in stages] for scheme, stages in one.stage_memory.items()}
    assert held == found
    assert one.memory is not None
    assert one.memory.total_bytes == max(*found["<pp2>"], *found["<tp4>"])


def test_percentiles_are_times_of_real_iterations() -> None:
    (one,) = compare(SETTING, ["search"])
    assert one.percentile_ms(50) == sorted(one.iteration_ms)[1]
    assert one.percentile_ms(99) == max(one.iteration_ms)


def test_conditions_slow_the_runs_and_not_the_plans() -> None:
    slow = ComparisonSetup(
        profile=PROFILE, cluster=CLUSTER, batches=BATCHES, slowdowns=dict.fromkeys(range(8), 2.0)
    )
    (before,), (after,) = compare(SETTING, ["search"]), compare(slow, ["search"])
    assert after.iteration_ms == pytest.approx([2 * ms for ms in before.iteration_ms])
    assert after.strategies == before.strategies
    wire = Network(token_bytes=1e4, inside_gigabytes_per_s=0.01, between_gigabytes_per_s=0.01)
    linked = ComparisonSetup(profile=PROFILE, cluster=CLUSTER, batches=BATCHES[:1], network=wire)
    alone = ComparisonSetup(profile=PROFILE, cluster=CLUSTER, batches=BATCHES[:1])
    (slower,), (plain,) = compare(linked, ["4x<pp2>"]), compare(alone, ["4x<pp2>"])
    assert slower.mean_ms > plain.mean_ms
    assert slower.parts_ms["compute"] == pytest.approx(plain.parts_ms["compute"])


def test_transfers_are_planned_and_simulated() -> None:
    def linked(link: Link, actual: Link | None = None) -> ComparisonSetup:
        return ComparisonSetup(
            profile=PROFILE, cluster=CLUSTER, batches=BATCHES, link=link, actual_link=actual
        )

    # A layer of 6,656 x 6,656 in a millisecond or so: as long as an iteration.
    fast, slow = link(100.0), link(10.0)
    (planned,), (slower,) = compare(linked(fast), ["search"]), compare(linked(fast, slow), ["search"])
    planner = Planner(PROFILE, CLUSTER, strategies="search", link=fast)
    assert planned.step_ms == pytest.approx([planner.plan(batch).step_ms for batch in BATCHES])
    assert slower.strategies == planned.strategies
    assert slower.iteration_ms == planned.iteration_ms
    assert slower.transfer_ms > planned.transfer_ms > 0
    assert sum(slower.parts_ms.values()) == pytest.approx(sum(slower.step_ms))
    assert 0 <= slower.overlapped_share < 1


def test_an_impossible_comparison_is_refused() -> None:
    long = ComparisonSetup(profile=PROFILE, cluster=CLUSTER, batches=[np.array([401])])
    with refused("sequence_too_long", "8 GPUs", "401 tokens"):
        compare(long, ["static"])
    with refused("strategy_invalid"):
        compare(SETTING, ["fastest"])
