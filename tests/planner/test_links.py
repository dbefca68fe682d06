"""Rates of a cluster's links, from those that a profile has measured."""

import json

import pytest

from hydraulis import Cluster, CostProfile, InvalidInputError, Link, LinkRates, Network, Planner
from hydraulis.planner.links import link_rates, message_network
from profiles import made_up_profile


def profile(*links: tuple[str, int, float, float], node: int = 8) -> CostProfile:
    """Give a profile of such nodes, with links of an operation, ranks, milliseconds and GB/s."""
    document = json.loads(made_up_profile({"<1>": 64}).to_json())
    names = ("operation", "ranks", "latency_ms", "gigabytes_per_s")
    document["hardware"]["gpus_per_node"] = node
    document["hardware"]["links"] = [dict(zip(names, link, strict=True)) for link in links]
    return CostProfile.from_json(json.dumps(document))


INSIDE = (("all_to_all", 2, 0.1, 80.0), ("all_to_all", 8, 0.7, 100.0), ("send", 8, 9.0, 1.0))


def test_inside_a_node_each_rank_keeps_its_own_part() -> None:
    rates = LinkRates.measured(profile(*INSIDE), Cluster(gpus=8, gpus_per_node=8))
    assert rates is not None
    # 7 of 8 parts leave a rank at 100 GB/s of its buffer, in 7 messages.
    assert rates.gpu_gigabytes_per_s == pytest.approx(87.5)
    assert rates.message_us == pytest.approx(100.0)


def test_between_nodes_a_node_sends_what_its_ranks_do() -> None:
    rates = LinkRates.measured(
        profile(*INSIDE, ("all_to_all", 32, 3.1, 4.0)), Cluster(gpus=32, gpus_per_node=8)
    )
    assert rates is not None
    # 24 of 32 parts of 8 ranks' buffers leave the node.
    assert rates.gigabytes_per_s == pytest.approx(8 * 4.0 * 0.75)
    assert rates.gpu_gigabytes_per_s == pytest.approx(87.5)
    assert rates.message_us == pytest.approx(100.0)


def test_where_nodes_have_one_gpu_what_crosses_is_all_there_is() -> None:
    between = profile(("all_to_all", 4, 0.3, 2.0), node=1)
    rates = LinkRates.measured(between, Cluster(gpus=4, gpus_per_node=1))
    assert rates is not None
    assert rates.gigabytes_per_s == rates.gpu_gigabytes_per_s == pytest.approx(1.5)
    # Exchanges inside a node of 8 say nothing of what crosses between nodes of 4.
    assert LinkRates.measured(profile(*INSIDE), Cluster(gpus=8, gpus_per_node=4)) is None


@pytest.mark.parametrize("links", [(), INSIDE[2:], INSIDE[:1]])
def test_what_was_not_measured_is_not_made_up(links: tuple[tuple[str, int, float, float], ...]) -> None:
    assert LinkRates.measured(profile(*links), Cluster(gpus=16, gpus_per_node=8)) is None


def test_rates_are_stated_measured_or_none() -> None:
    cluster = Cluster(gpus=8, gpus_per_node=8)
    measured = profile(*INSIDE)
    assert link_rates("--link", "profile", measured, cluster) == LinkRates.measured(measured, cluster)
    assert link_rates("--link", "25,40,5", measured, cluster) == LinkRates(
        gigabytes_per_s=25, gpu_gigabytes_per_s=40, message_us=5
    )
    assert link_rates("--link", "none", measured, cluster) is None
    assert link_rates("--link", "25", measured, Cluster(gpus=1, gpus_per_node=1)) is None
    with pytest.raises(InvalidInputError, match="--link = 'fast'") as refusal:
        link_rates("--link", "fast", measured, cluster)
    assert refusal.value.code == "config_value"


def test_a_link_moves_the_profiles_model() -> None:
    shipped, cluster = CostProfile.preset("llama-7b-a800"), Cluster(gpus=16, gpus_per_node=8)
    rates = LinkRates(gigabytes_per_s=100.0, gpu_gigabytes_per_s=1e6, message_us=0.0)
    planner = Planner(shipped, cluster, strategies=["8x<tp2>"], link=Link.of_profile(shipped, rates))
    plan = planner.plan([500] * 64)
    assert plan.moved_bytes is not None
    # Half of 6.7 billion parameters leave each of two nodes, 2 bytes out and 4 back.
    assert plan.moved_bytes == pytest.approx(6.7e9 * 6, rel=0.02)
    with pytest.raises(InvalidInputError, match="does not say of which model it is") as refusal:
        Link.of_profile(profile(), rates)
    assert refusal.value.code == "link_model"


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
    rates = LinkRates(gigabytes_per_s=0.001, gpu_gigabytes_per_s=1e6, message_us=250.0)
    planner = Planner(measured, cluster, strategies=["1x<tp2,pp2>"])
    plan = planner.plan([1_000])
    sent = planner.simulate(plan, network=message_network(text, measured, rates))
    # Two ranks send half of 8,192,000 bytes each over their node's wire, there and back.
    way_ms = 2 * 4_096_000 / (gigabytes_per_s * 1e6) + latency_ms
    assert sent.iteration_ms - plan.iteration_ms == pytest.approx(2 * way_ms)
