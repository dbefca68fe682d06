"""The planner of a run: its strategies, its links, and what it learns."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import refused
from hydraulis import Cluster, CostProfile, Link, LinkRates, Plan, Planner
from hydraulis.config.planner import PlannerConfig
from hydraulis.planner.devices import cluster_of_devices
from hydraulis.planner.profile_document import with_scaled_times
from hydraulis.runtime.planning.longest import check_longest, sufficient_mib
from hydraulis.runtime.planning.run_planner import RunPlanner, _slowed, run_link
from hydraulis.runtime.state.parameters import ModelParameters
from profiles import made_up_profile
from small_model import small_config

CLUSTER = Cluster(gpus=4, gpus_per_node=4)
# Wide replicas compute less of the time, so that each is the best for some batches.
SLOWER = {"<tp2>": 1.5, "<tp4>": 2.2}
LENGTHS = np.array([60, 31, 30, 22, 9, 9, 5, 2])
LIST = ("4x<1>", "2x<tp2>", "1x<tp4>")
TRANSFERRED = (ModelParameters.from_config(small_config()), torch.bfloat16)


def profile() -> CostProfile:
    document = json.loads(made_up_profile({"<1>": 64, "<tp2>": 128, "<pp2>": 64, "<tp4>": 256}).to_json())
    for entry in document["schemes"]:
        for name in ("quadratic_ms_per_token2", "linear_ms_per_token", "fixed_ms"):
            entry[name] *= SLOWER.get(entry["scheme"], 1.0)
    return CostProfile.from_json(json.dumps(document))


PROFILE = profile()


def config(*strategies: str, **settings: Any) -> PlannerConfig:
    return PlannerConfig(strategies=strategies, memory_mib=1, **settings)


def test_without_recalibration_plans_equal_those_of_the_planner() -> None:
    run = RunPlanner(config(*LIST), PROFILE, CLUSTER)
    plan = run.plan(LENGTHS, LENGTHS - 1)
    assert plan == Planner(PROFILE, CLUSTER, strategies=list(LIST)).plan(LENGTHS, LENGTHS - 1)
    run.check(plan, LENGTHS, LENGTHS - 1)
    assert run.strategies == list(LIST)
    assert run.longest_admitted == 256
    run.observe(plan, [[] for _ in plan.replicas])
    assert run.plan(LENGTHS, LENGTHS - 1) == plan


def test_a_sequence_too_long_for_the_memory_names_a_memory_that_suffices() -> None:
    mib = PROFILE.memory_bytes >> 20
    limited = replace(config("search"), memory_mib=mib)
    short = RunPlanner(limited, PROFILE, CLUSTER)
    with refused("sequence_too_long", f"raise planner.memory_mib = {mib:,} to {mib + 1:,}, or use more"):
        check_longest(short, limited, PROFILE, 300)
    assert sufficient_mib(PROFILE, CLUSTER, 256) == mib + 1
    assert sufficient_mib(PROFILE, CLUSTER, 1 << 40) is None
    more = Cluster(4, 4, memory_bytes=[(mib + 1) << 20] * 4)
    assert Planner(PROFILE, more, strategies="search").longest_admitted >= 300
    unlimited = replace(config("search"), memory_mib=None)
    on_device = RunPlanner(unlimited, PROFILE, CLUSTER)
    with refused("sequence_too_long", "raise planner.memory_mib, or use more ranks"):
        check_longest(on_device, unlimited, PROFILE, 300)


def test_the_memory_rule_is_passed_to_the_planner() -> None:
    by_cap, exact = (
        RunPlanner(config("2x<pp2>", memory=rule), PROFILE, CLUSTER)
        for rule in ("per_micro_batch", "in_flight")
    )
    assert (by_cap.longest_admitted, exact.longest_admitted) == (64, 128)
    plan = exact.plan(np.array([120, 110, 100, 9]))
    assert (plan.memory, plan.replicas[0].cap_tokens) == ("in_flight", 64)


def test_a_search_keeps_within_its_limit_also_after_a_resume() -> None:
    rng = np.random.default_rng(0)
    longest = (40, 64, 120, 250) * 3
    batches = [np.append(rng.integers(2, 40, 20), most) for most in longest]
    free = RunPlanner(config("search"), PROFILE, CLUSTER)
    assert len({free.plan(lengths).strategy for lengths in batches}) > 2
    assert free.strategies == ["4x<1>", "2x<tp2>", "2x<pp2>", "1x<tp4>"]
    limited = RunPlanner(config("search", max_strategies=2), PROFILE, CLUSTER)
    plans = [limited.plan(lengths) for lengths in batches]
    assert len(limited.used) <= 2
    assert limited.used == list(dict.fromkeys(plan.strategy for plan in plans))
    resumed = RunPlanner(config("search", max_strategies=2), PROFILE, CLUSTER)
    resumed.resume(list(dict.fromkeys(plan.strategy for plan in plans[:5])), {})
    assert [resumed.plan(lengths) for lengths in batches[5:]] == plans[5:]


def test_recalibration_changes_the_chosen_strategy() -> None:
    run = RunPlanner(config(*LIST, recalibrate=0.5), PROFILE, CLUSTER)
    before = run.plan(LENGTHS)
    slow = {str(scheme): 2.0 for scheme in {replica.scheme for replica in before.replicas}}
    fast = {text: 0.5 for text in PROFILE.schemes if text not in slow}
    run.resume([], slow | fast)
    after = run.plan(LENGTHS)
    assert after.strategy != before.strategy
    # A timeline is by the times of its plan, though another one has been made since.
    for plan in (before, after):
        ends = [span.end_ms for spans in run.timeline(plan) for span in spans]
        assert max(ends) == pytest.approx(plan.iteration_ms)
    run.check(after, LENGTHS)
    # The change is too small for another plan: the same times as before.
    assert run.recalibration is not None
    run.recalibration.factors["<tp4>"] *= 1.001
    run.learn()
    assert run.plan(LENGTHS) == after
    # Where nothing is to be learnt, nothing is.
    deaf = RunPlanner(config(*LIST), PROFILE, CLUSTER)
    deaf.resume([], slow | fast)
    assert deaf.plan(LENGTHS) == before


def test_a_factor_is_compared_with_the_mean_that_its_scheme_had_before() -> None:
    run = RunPlanner(config("2x<tp2>", recalibrate=0.5), PROFILE, CLUSTER)
    usual = run.plan(LENGTHS).iteration_ms
    # The other scheme takes the mean of the known factors at first.
    run.resume([], {"<1>": 1.5})
    assert run.plan(LENGTHS).iteration_ms == pytest.approx(1.5 * usual)
    run.resume([], {"<1>": 1.5, "<tp2>": 1.005})
    assert run.plan(LENGTHS).iteration_ms == pytest.approx(1.005 * usual)


def with_links(unlinked: CostProfile) -> CostProfile:
    document = json.loads(unlinked.to_json())
    link = {"operation": "all_to_all", "ranks": 4, "latency_ms": 0.3, "gigabytes_per_s": 2.0}
    document["hardware"]["links"] = [link]
    return CostProfile.from_json(json.dumps(document))


def test_transfers_are_planned_by_measured_or_stated_links() -> None:
    link = run_link(config(*LIST), with_links(PROFILE), CLUSTER, *TRANSFERRED)
    assert "6 GB/s a node, 1.5 GB/s a GPU, 100 us" in repr(link)
    stated = run_link(config(*LIST, link="25,40,5"), PROFILE, CLUSTER, *TRANSFERRED)
    assert "25 GB/s a node, 40 GB/s a GPU, 5 us" in repr(stated)
    plan = RunPlanner(config(*LIST), PROFILE, CLUSTER, stated).plan(LENGTHS)
    # All ranks' parameters in bfloat16 one way, and their sums in float32 the other.
    assert plan.moved_bytes is not None
    assert plan.moved_bytes % (2 + 4) == 0
    assert plan.step_ms > plan.iteration_ms


def test_without_links_transfers_are_left_out() -> None:
    assert run_link(config(*LIST), PROFILE, CLUSTER, *TRANSFERRED) is None
    assert run_link(config(*LIST, link="none"), with_links(PROFILE), CLUSTER, *TRANSFERRED) is None
    assert run_link(config(*LIST, link="25"), PROFILE, Cluster(gpus=1, gpus_per_node=1), *TRANSFERRED) is None
    assert RunPlanner(config(*LIST), PROFILE, CLUSTER).plan(LENGTHS).transfer_ms is None


def test_rates_change_the_plans_that_are_requested_later() -> None:
    run = RunPlanner(config("4x<1>"), PROFILE, CLUSTER)
    usual = run.plan(LENGTHS)
    assert usual.cluster.rates is None
    changes = []
    for _ in range(2):
        slow = [300.0 * (1 + (rank == 1)) * share for rank, share in enumerate(shares(usual))]
        changes += run.observe_ranks(usual, slow)
    # The plan in progress was requested before.
    assert run.plan(LENGTHS) == usual
    run.learn()
    plan = run.plan(LENGTHS)
    assert [(change.rank, change.slowdown) for change in changes] == [(1, 2.0)]
    assert plan.cluster == Cluster(4, 4, rates=[1.0, 0.5, 1.0, 1.0])
    assert plan == Planner(PROFILE, plan.cluster, strategies=["4x<1>"]).plan(LENGTHS)
    run.check(plan, LENGTHS)
    # A plan has the times and the memory of its own rates.
    assert max(span.end_ms for spans in run.timeline(usual) for span in spans) == usual.iteration_ms
    assert all(memory is not None for memory in run.rank_memory(usual))
    resumed = RunPlanner(config("4x<1>"), PROFILE, CLUSTER)
    resumed.resume([], {}, plan.cluster.rates or ())
    assert resumed.plan(LENGTHS) == plan


def test_a_slow_rank_of_another_device_has_a_share_of_its_rate() -> None:
    twice = PROFILE.with_other_devices([(0.5, with_scaled_times(PROFILE, lambda _: 2.0))])
    usual = cluster_of_devices(twice, [0, 0, 1, 1], 4)
    run = RunPlanner(config("4x<1>"), twice, usual)
    first = run.plan(LENGTHS)
    assert first.cluster == usual
    for _ in range(2):
        run.observe_ranks(
            first, [300.0 * (1 + (rank == 3)) * share for rank, share in enumerate(shares(first))]
        )
    run.learn()
    plan = run.plan(LENGTHS)
    assert plan.cluster.rates == [1.0, 1.0, 0.5, 0.25]
    assert (plan.cluster.devices, plan.cluster.memory_bytes) == ([0, 0, 1, 1], usual.memory_bytes)
    run.check(plan, LENGTHS)
    assert run.planned_with(plan).rates == [1.0, 1.0, 1.0, 0.5]
    assert run.planned_with(first).rates is None
    # The least rate that a cluster can state is the limit.
    run.resume([], {}, [1.0, 1.0, 1.0, 0.001])
    assert run.plan(LENGTHS).cluster.rates == [1.0, 1.0, 0.5, 0.001]


def test_no_rank_is_slow_if_rates_are_not_wanted() -> None:
    run = RunPlanner(config("4x<1>", slow_rank=0.0), PROFILE, CLUSTER)
    usual = run.plan(LENGTHS)
    for _ in range(5):
        assert run.observe_ranks(usual, [1e3, 9e3, 1e3, 1e3]) == []
    run.resume([], {}, [1.0, 0.5, 1.0, 1.0])
    assert run.plan(LENGTHS) == usual


def test_a_slow_rank_is_no_error_of_the_profile() -> None:
    learnt = RunPlanner(config("4x<1>", recalibrate=0.5), PROFILE, CLUSTER)
    learnt.resume([], {}, [1.0, 0.5, 1.0, 1.0])
    plan = learnt.plan(LENGTHS)
    learnt.observe(plan, learnt.timeline(plan))
    assert learnt.recalibration is not None
    assert learnt.recalibration.factors == {"<1>": pytest.approx(1.0, rel=1e-9)}


def shares(plan: Plan) -> list[float]:
    """Give each rank's predicted time over that of the first replica; each rank is a replica."""
    by_rank = {replica.ranks[0]: replica.predicted_ms for replica in plan.replicas}
    return [by_rank[rank] / by_rank[0] for rank in range(4)]


def test_slow_links_are_slower_than_those_of_their_nodes_device() -> None:
    shipped = CostProfile.preset("llama-7b-a800")
    usual = Link.of_profile(shipped, LinkRates(gigabytes_per_s=50)).with_node_slowdowns([1.0, 2.0])
    run = RunPlanner(config("4x<tp4>"), shipped, Cluster(16, 8), usual)
    assert run.node_links is not None
    assert run.node_links._factors == [1.0, 2.0]
    assert _slowed(usual, ()) == usual
    assert _slowed(usual, [3.0, 1.0]).node_slowdowns == [3.0, 2.0]
    assert _slowed(usual, [1.0, 900.0]).node_slowdowns == [1.0, 1000.0]
    even = Link.of_profile(shipped, LinkRates(gigabytes_per_s=50))
    assert _slowed(even, [1.0, 3.0]).node_slowdowns == [1.0, 3.0]
