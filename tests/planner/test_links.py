"""The links of a cluster by measurement and by texts, of nodes of one kind and of several."""

import json

import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, Link, LinkRates, Network, Planner
from hydraulis.planner.links import ClusterLinks, resolve_links, resolve_network
from hydraulis.planner.nodes import NodeKind, mix_nodes
from profiles import made_up_profile


def profile(*links: tuple[str, int, float, float], node: int = 8) -> CostProfile:
    """Give a profile of such nodes, with links of an operation, ranks, milliseconds and GB/s."""
    document = json.loads(made_up_profile({"<1>": 64}).to_json())
    names = ("operation", "ranks", "latency_ms", "gigabytes_per_s")
    document["hardware"]["gpus_per_node"] = node
    document["hardware"]["links"] = [dict(zip(names, link, strict=True)) for link in links]
    return CostProfile.from_json(json.dumps(document))


INSIDE = (("all_to_all", 2, 0.1, 80.0), ("all_to_all", 8, 0.7, 100.0), ("send", 8, 9.0, 1.0))


def test_traffic_inside_a_node_counts_each_rank_alone() -> None:
    rates = LinkRates.measured(profile(*INSIDE), Cluster(gpus=8, gpus_per_node=8))
    assert rates is not None
    # 7 of 8 parts leave a rank at 100 GB/s of its buffer, in 7 messages.
    assert rates.gpu_gigabytes_per_s == pytest.approx(87.5)
    assert rates.message_us == pytest.approx(100.0)


def test_traffic_between_nodes_adds_up_over_the_ranks_of_a_node() -> None:
    rates = LinkRates.measured(
        profile(*INSIDE, ("all_to_all", 32, 3.1, 4.0)), Cluster(gpus=32, gpus_per_node=8)
    )
    assert rates is not None
    # 24 of 32 parts of 8 ranks' buffers leave the node.
    assert rates.gigabytes_per_s == pytest.approx(8 * 4.0 * 0.75)
    assert rates.gpu_gigabytes_per_s == pytest.approx(87.5)
    assert rates.message_us == pytest.approx(100.0)


def test_with_one_gpu_per_node_all_traffic_is_between_nodes() -> None:
    between = profile(("all_to_all", 4, 0.3, 2.0), node=1)
    rates = LinkRates.measured(between, Cluster(gpus=4, gpus_per_node=1))
    assert rates is not None
    assert rates.gigabytes_per_s == rates.gpu_gigabytes_per_s == pytest.approx(1.5)
    # Exchanges inside a node of 8 do not measure the links between nodes of 4.
    assert LinkRates.measured(profile(*INSIDE), Cluster(gpus=8, gpus_per_node=4)) is None


@pytest.mark.parametrize("links", [(), INSIDE[2:], INSIDE[:1]])
def test_absent_measurements_stay_absent(links: tuple[tuple[str, int, float, float], ...]) -> None:
    assert LinkRates.measured(profile(*links), Cluster(gpus=16, gpus_per_node=8)) is None


def test_rates_are_stated_measured_or_absent() -> None:
    cluster = Cluster(gpus=8, gpus_per_node=8)
    measured = profile(*INSIDE)
    rates = LinkRates.measured(measured, cluster)
    assert rates is not None
    assert resolve_links("--link", "profile", measured, cluster) == ClusterLinks(rates)
    assert resolve_links("--link", "25,40,5", measured, cluster) == ClusterLinks(
        LinkRates(gigabytes_per_s=25, gpu_gigabytes_per_s=40, message_us=5)
    )
    assert resolve_links("--link", "none", measured, cluster) is None
    assert resolve_links("--link", "25", measured, Cluster(gpus=1, gpus_per_node=1)) is None
    with refused("config_value", "--link = 'fast'"):
        resolve_links("--link", "fast", measured, cluster)


def mixed(*measured: tuple[tuple[str, int, float, float], ...]) -> tuple[CostProfile, Cluster]:
    """Give the profile and the cluster of two nodes of each device: `made-up-0`, `made-up-1` ..."""
    kinds = []
    for number, links in enumerate(measured):
        document = json.loads(profile(*links).to_json())
        document["hardware"]["device"] = f"made-up-{number}"
        # Profiles that are equal are one kind.
        document["hardware"]["memory_bytes"] += number
        kinds.append(NodeKind(2, CostProfile.from_json(json.dumps(document))))
    return mix_nodes(kinds[0].profile, kinds, 8)


def test_nodes_of_several_devices_have_their_own_stated_links() -> None:
    nodes = mixed((), (), ())
    text = "made-up-2=12.5,300,20; made-up-0=50,200,10; made-up-1=25,450"
    assert resolve_links("--link", text, *nodes) == ClusterLinks(
        LinkRates(gigabytes_per_s=50, gpu_gigabytes_per_s=200, message_us=20),
        (1.0, 1.0, 2.0, 2.0, 4.0, 4.0),
    )
    assert resolve_links("--link", "made-up-0=25;made-up-1=25;made-up-2=25", *nodes) == ClusterLinks(
        LinkRates(gigabytes_per_s=25)
    )
    for text, named in {
        "made-up-0=50;made-up-1=25": "no rates for made-up-2: add made-up-2=",
        "made-up-0=50;made-up-1=25;made-up-2=9;H100=100": "'H100': write one of made-up-0, made-up-1",
        "made-up-0=50;made-up-0=25": "must be",
        "made-up-0=50;25": "must be",
        "50;25;25": "must be",
        "made-up-0=50;made-up-1=fast;made-up-2=9": "must be",
    }.items():
        with refused("config_value", f"--link = {text!r}", named):
            resolve_links("--link", text, *nodes)


def test_measured_links_of_the_nodes_count_and_not_those_of_an_absent_device() -> None:
    profile, _ = mixed(INSIDE, (*INSIDE, ("all_to_all", 32, 3.1, 4.0)))
    found = resolve_links("--link", "profile", profile, Cluster(16, 8, devices=[1] * 16))
    assert found is not None
    assert found.rates.gigabytes_per_s == pytest.approx(24.0)


def test_rates_that_are_too_far_apart_are_refused_by_the_option() -> None:
    text = "made-up-0=10000;made-up-1=9"
    with refused("config_value", f"--link = {text!r}", "1,111 times as fast", "1,000"):
        resolve_links("--link", text, *mixed((), ()))


def test_a_device_that_no_node_has_needs_no_rates() -> None:
    profile, _ = mixed((), ())
    cluster = Cluster(16, 8, devices=[1] * 16)
    found = resolve_links("--link", "made-up-1=25", profile, cluster)
    assert found == ClusterLinks(LinkRates(gigabytes_per_s=25))


def test_nodes_of_several_devices_have_the_links_that_their_profiles_measured() -> None:
    fast = (*INSIDE, ("all_to_all", 32, 3.1, 4.0))
    slow = (*INSIDE, ("all_to_all", 32, 6.2, 1.0))
    profile, cluster = mixed(fast, slow)
    found = resolve_links("planner.link", "profile", profile, cluster)
    assert found is not None
    assert found.rates.gigabytes_per_s == pytest.approx(24.0)
    assert found.rates.message_us == pytest.approx(200.0)
    assert found.node_slowdowns == pytest.approx((1.0, 1.0, 4.0, 4.0))
    # Those of the first stand for a profile without links between nodes; without them there are none.
    profile, cluster = mixed(fast, INSIDE)
    found = resolve_links("planner.link", "profile", profile, cluster)
    rates = LinkRates.measured(profile, cluster)
    assert rates is not None
    assert found == ClusterLinks(rates)
    assert resolve_links("planner.link", "profile", *mixed(INSIDE, slow)) is None


def test_transfers_of_slower_nodes_take_longer_in_a_plan() -> None:
    cluster = Cluster(gpus=16, gpus_per_node=8)
    shipped = CostProfile.preset("llama-7b-a800")
    # So slow that computation overlaps next to none of the transfers.
    rates = LinkRates(gigabytes_per_s=0.01, gpu_gigabytes_per_s=1e6, message_us=0.0)
    found = []
    for slowdowns in ((), (1.0, 3.0)):
        link = ClusterLinks(rates, slowdowns).of_profile(shipped)
        assert tuple(link.node_slowdowns) == slowdowns
        plan = Planner(shipped, cluster, strategies=["8x<tp2>"], link=link).plan([500] * 64)
        assert plan.transfer_ms is not None
        found.append(plan.transfer_ms)
    assert found[1] == pytest.approx(3 * found[0], rel=1e-3)


def test_a_link_moves_the_profiles_model() -> None:
    shipped, cluster = CostProfile.preset("llama-7b-a800"), Cluster(gpus=16, gpus_per_node=8)
    rates = LinkRates(gigabytes_per_s=100.0, gpu_gigabytes_per_s=1e6, message_us=0.0)
    planner = Planner(shipped, cluster, strategies=["8x<tp2>"], link=Link.of_profile(shipped, rates))
    plan = planner.plan([500] * 64)
    assert plan.moved_bytes is not None
    # Half of 6.7 billion parameters leave each of two nodes, 2 bytes out and 4 back.
    assert plan.moved_bytes == pytest.approx(6.7e9 * 6, rel=0.02)
    with refused("profile_invalid", "cost profile 'made-up'", "add 'model'"):
        Link.of_profile(profile(), rates)


def test_messages_travel_at_the_links_rates() -> None:
    shipped, cluster = CostProfile.preset("llama-7b-a800"), Cluster(gpus=2, gpus_per_node=1)
    rates = LinkRates(gigabytes_per_s=0.001, gpu_gigabytes_per_s=1e6, message_us=250.0)
    planner = Planner(shipped, cluster, strategies=["1x<pp2>"])
    plan = planner.plan([1_000])
    sent = planner.simulate(plan, network=Network.of_profile(shipped, rates))
    # 4,096 elements of 2 bytes for each token, there and back.
    assert sent.iteration_ms - plan.iteration_ms == pytest.approx(2 * (8_192_000 / 1e3 + 0.25))


@pytest.mark.parametrize(
    ("text", "gigabytes_per_s", "latency_ms"), [("profile", 2 * 0.002, 3.0), ("0.001", 0.001, 0.25)]
)
def test_messages_travel_as_they_were_measured(text: str, gigabytes_per_s: float, latency_ms: float) -> None:
    document = json.loads(CostProfile.preset("llama-7b-a800").to_json())
    send = {"operation": "send", "ranks": 4, "latency_ms": 3.0, "gigabytes_per_s": 0.002}
    document["hardware"] |= {"gpus_per_node": 2, "links": [send]}
    measured, cluster = CostProfile.from_json(json.dumps(document)), Cluster(gpus=4, gpus_per_node=2)
    # Where nodes differ, messages travel at the rate of the slowest one.
    rates = LinkRates(gigabytes_per_s=0.002, gpu_gigabytes_per_s=1e6, message_us=250.0)
    planner = Planner(measured, cluster, strategies=["1x<tp2,pp2>"])
    plan = planner.plan([1_000])
    links = ClusterLinks(rates, (1.0, 2.0))
    sent = planner.simulate(plan, network=resolve_network(text, measured, links))
    # Two ranks send half of 8,192,000 bytes each over their node's wire, there and back.
    way_ms = 2 * 4_096_000 / (gigabytes_per_s * 1e6) + latency_ms
    assert sent.iteration_ms - plan.iteration_ms == pytest.approx(2 * way_ms)
