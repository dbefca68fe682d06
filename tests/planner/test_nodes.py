"""Clusters with nodes of several kinds: their times, rates and memory, and refusals of wrong descriptions."""

import json
import pickle
from pathlib import Path
from typing import cast

import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis.planner import load_profile
from hydraulis.planner.nodes import (
    NodeKind,
    describe_nodes,
    mix_nodes,
    parse_nodes,
)
from hydraulis.planner.profile_document import with_scaled_times, with_schemes
from profiles import made_up_profile

CAPS = {"<1>": 4096, "<tp2>": 8192, "<pp2>": 4096, "<tp2,cp8>": 16384}
REFERENCE = made_up_profile(CAPS)


def faster(factors: dict[str, float], memory: int | None = None) -> CostProfile:
    """Give a profile of devices on which each scheme is faster by this factor."""
    document = json.loads(with_scaled_times(REFERENCE, lambda scheme: 1 / factors.get(scheme, 1.0)).to_json())
    document["hardware"]["memory_bytes"] = memory or document["hardware"]["memory_bytes"]
    return CostProfile.from_json(json.dumps(document))


def test_ranks_have_the_rate_and_the_memory_of_their_nodes() -> None:
    fast = faster(dict.fromkeys(CAPS, 2.0), memory=20_000_000_000)
    profile, cluster = mix_nodes(REFERENCE, [NodeKind(1, REFERENCE), NodeKind(2, fast)], 2)
    assert (cluster.gpus, cluster.gpus_per_node) == (6, 2)
    assert cluster.rates == pytest.approx([1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    assert cluster.memory_bytes == [10_000_000_000] * 2 + [20_000_000_000] * 4
    assert cluster.devices == [0] * 2 + [1] * 4
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    lengths = [300] * 100
    plan = Planner(profile, cluster, strategies=["6x<1>"]).plan(lengths)
    work = {replica.ranks[0]: sum(map(len, replica.micro_batches)) for replica in plan.replicas}
    assert [work[rank] for rank in range(6)] == [10, 10, 20, 20, 20, 20]


@pytest.mark.parametrize(("nodes", "of_node"), [(0, 8), (2**40, 8), (1, 2**30), (1, 0), (1, -1)])
def test_a_cluster_beyond_the_limits_is_refused(nodes: int, of_node: int) -> None:
    with refused("argument_invalid", "GPUs in nodes of"):
        mix_nodes(REFERENCE, [NodeKind(nodes, REFERENCE)], of_node)


def test_a_device_next_to_a_profile_that_is_not_analytic_is_refused() -> None:
    with refused("profile_unknown", "--nodes", "'H100'", "a device's name needs", "analytic:MODEL:DEVICE"):
        parse_nodes("--nodes", "1xllama-7b-a800;2xH100", "llama-7b-a800")


def test_each_scheme_takes_the_times_of_its_ranks_own_profile() -> None:
    fast = faster({"<1>": 2.0, "<tp2>": 5.0, "<pp2>": 2.0, "<tp2,cp8>": 2.0})
    profile, cluster = mix_nodes(REFERENCE, [NodeKind(1, fast), NodeKind(1, REFERENCE)], 2)
    assert profile.other_devices == [(2.0, fast)]
    lengths = [3_000, 3_000]
    plan = Planner(profile, cluster, strategies=["1x<tp2>+2x<1>"]).plan(lengths)
    assert plan.replicas[0].ranks == [0, 1]
    own = {"<tp2>": fast, "<1>": REFERENCE}
    for replica in plan.replicas:
        taken = [
            own[str(replica.scheme)].micro_batch_ms(replica.scheme, [lengths[sequence] for sequence in ids])
            for ids in replica.micro_batches
        ]
        assert replica.predicted_ms == pytest.approx(sum(taken))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert Planner(profile, cluster).check(again, lengths) == []


def test_another_profile_of_several_devices_has_the_same_edits_on_each() -> None:
    fast = faster(dict.fromkeys(CAPS, 4.0))
    profile, _ = mix_nodes(REFERENCE, [NodeKind(1, REFERENCE), NodeKind(1, fast)], 8)
    scheme = Scheme("<tp2>")
    edited = with_scaled_times(with_schemes(profile, [scheme]), lambda _: 3.0)
    ((_, on_fast),) = edited.other_devices
    assert edited.schemes == on_fast.schemes == ["<tp2>"]
    assert on_fast.micro_batch_ms(scheme, [700]) == pytest.approx(3 * fast.micro_batch_ms(scheme, [700]))
    assert edited.micro_batch_ms(scheme, [700]) == pytest.approx(3 * REFERENCE.micro_batch_ms(scheme, [700]))


def test_devices_without_rates_have_their_own() -> None:
    profile, cluster = mix_nodes(REFERENCE, [NodeKind(1, REFERENCE), NodeKind(1, faster({"<1>": 2.0}))], 2)
    lengths = [300] * 60
    stated = Planner(
        profile, Cluster(4, 2, rates=cluster.rates, devices=cluster.devices), strategies=["4x<1>"]
    )
    derived = Planner(profile, Cluster(4, 2, devices=cluster.devices), strategies=["4x<1>"])
    assert derived.plan(lengths) == stated.plan(lengths)


def test_a_cluster_with_a_device_of_no_profile_is_refused() -> None:
    with refused("argument_invalid", "rank 3 is device 1", REFERENCE.name, "with_other_devices"):
        Planner(REFERENCE, Cluster(4, 2, devices=[0, 0, 0, 1]))
    for number in (-1, 70_000, 0.5):
        with refused("argument_invalid", "devices", str(number)):
            Cluster(2, 2, devices=cast("list[int]", [0, number]))
    with refused("profile_invalid", "other_devices[0].rate"):
        REFERENCE.with_other_devices([(0.0, REFERENCE)])


def test_nodes_of_one_kind_are_the_usual_cluster() -> None:
    profile, cluster = mix_nodes(REFERENCE, [NodeKind(2, REFERENCE)], 4)
    assert profile == REFERENCE
    assert cluster == Cluster(8, 4)


def test_kinds_are_named_by_devices_or_by_profiles(tmp_path: Path) -> None:
    reference = "analytic:llama-7b-a800:A100-80GB,none,full"
    kinds = parse_nodes("--nodes", " 2xH100 ;1xH20;", reference)
    assert [(kind.nodes, kind.profile.device) for kind in kinds] == [(2, "H100-80GB"), (1, "H20-96GB")]
    assert kinds[0].profile.schemes == load_profile(reference).schemes
    (tmp_path / "xx.json").write_text(REFERENCE.to_json())
    (kind,) = parse_nodes("--nodes", f"3x{tmp_path}/xx.json", "made-up.json")
    assert kind == NodeKind(3, REFERENCE)


def test_the_kinds_are_described_with_their_rates() -> None:
    kinds = [NodeKind(2, REFERENCE), NodeKind(1, faster({"<1>": 2.0, "<tp2>": 3.0, "<pp2>": 4.0}))]
    first, second = describe_nodes(REFERENCE, kinds, 8)
    assert first == "2 x 8 none, ranks 0-15: rate 1.00, 10 GB"
    assert second == "1 x 8 none, ranks 16-23: rate 3.00 (2.00 to 4.00 by scheme), 10 GB"


@pytest.mark.parametrize("text", ["", ";", "H100", "0xH100", "2 x H100", "2xH100,1xH20", "-1xH20"])
def test_other_forms_are_refused(text: str) -> None:
    with refused("option_invalid", "--nodes", "COUNTxKIND"):
        parse_nodes("--nodes", text, "analytic:llama-7b-a800:H100")
