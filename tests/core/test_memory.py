"""The two rules of memory, from Python."""

from typing import Any

from helpers import refused
from hydraulis import Cluster, CostProfile, InfeasibleError, Plan, Planner

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
LENGTHS = [111_616, 43_521, 9_000, 400, 80]


def test_the_in_flight_limit_admits_longer_sequences() -> None:
    by_cap = Planner(PROFILE, CLUSTER, strategies="search")
    exact = Planner(PROFILE, CLUSTER, strategies="search", memory="in_flight")
    assert (by_cap.memory, by_cap.longest_admitted) == ("per_micro_batch", 43_520)
    assert (exact.memory, exact.longest_admitted) == ("in_flight", 111_616)
    with refused("sequence_too_long", "43,520"):
        by_cap.plan(LENGTHS)
    plan = exact.plan(LENGTHS)
    assert plan.memory == "in_flight"
    assert exact.check(plan, LENGTHS) == []
    assert any(broken.startswith("memory_differs") for broken in by_cap.check(plan, LENGTHS))
    assert Plan.from_json(plan.to_json()) == plan


def test_empty_micro_batches_separate_sequences_that_exceed_the_memory_together() -> None:
    planner = Planner(PROFILE, CLUSTER, strategies=["2x<tp8,pp4>"], memory="in_flight")
    plan = planner.plan([100_000] * 4)
    assert [[len(ids) for ids in replica.micro_batches] for replica in plan.replicas] == [[1, 0, 0, 0, 1]] * 2
    assert [replica.cap_tokens for replica in plan.replicas] == [27_904] * 2


def test_an_unknown_memory_rule_is_refused() -> None:
    unknown: Any = "all"
    with refused("argument_invalid", "per_micro_batch", "in_flight"):
        Planner(PROFILE, CLUSTER, memory=unknown)


def test_host_memory_without_room_is_named_with_its_bytes() -> None:
    model = CostProfile.preset("llama-7b-a800").model
    assert model is not None
    cluster = Cluster(gpus=8, gpus_per_node=8)
    profile = CostProfile.analytic(
        model, cluster, "A100-40GB", checkpointing=["full-offload"], host_memory_bytes=1 << 20
    )
    assert profile.host_memory_bytes == 1 << 20
    parts = ("<tp8,full-offload>", "128 tokens", "planner.host_memory_mib = 1 ")
    with refused("scheme_too_large", *parts, kind=InfeasibleError):
        Planner(profile, cluster, strategies=["1x<tp8,full-offload>"])
