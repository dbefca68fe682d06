"""A cluster's links: as stated, or from what a profile has measured of them."""

import json

from hydraulis._core import Cluster, CostProfile, LinkRates, Network
from hydraulis.config.link_rates import parse_link_rates
from hydraulis.config.planner import LINK_OF_PROFILE, NO_LINK

_EXCHANGE = "all_to_all"


def link_rates(field: str, text: str, profile: CostProfile, cluster: Cluster) -> LinkRates | None:
    """Give the rates that a text asks for.

    Args:
        field: that the text is the value of, for messages.
        text: `profile` for what the profile has measured, `none`, or `NODE[,GPU[,MESSAGE]]`.
        profile: with or without measured links.
        cluster: to be planned for.

    Returns:
        The rates; None for `none`, for one rank alone, and where the profile has none for the cluster.

    Raises:
        InvalidInputError: the text is none of these (code `config_value`), or what the profile has measured
            is beyond the limits (`link_rate`, `message_time`).
    """
    if text == NO_LINK:
        return None
    rates = measured_rates(profile, cluster) if text == LINK_OF_PROFILE else parse_link_rates(field, text)
    return None if cluster.gpus == 1 else rates


def message_network(text: str, profile: CostProfile, rates: LinkRates) -> Network:
    """Give what carries messages between stages, by the links that a text asks for.

    Args:
        text: as of `link_rates`.
        profile: with or without measured links.
        rates: that the text stands for.

    Returns:
        For `profile` the wires that it has measured point to point; where it has none, and for stated rates,
        wires of the links' rates.

    Raises:
        InvalidInputError: the profile does not say of which model it is (code `link_model`), or what it has
            measured is no rate or latency (`network_value`).
    """
    return (Network.measured if text == LINK_OF_PROFILE else Network.of_profile)(profile, rates)


def measured_rates(profile: CostProfile, cluster: Cluster) -> LinkRates | None:
    """Derive rates from all-to-all exchanges: transfers are such.

    Of `n` ranks that exchange at `r` bytes of their own buffers a second, each sends `(n - 1) / n` of it;
    where nodes have `g` of them, a node's links carry `g r (n - g) / n`. A message takes the latency of the
    widest exchange over its `n - 1` messages.

    Args:
        profile: with the links of the ranks that it was measured on, in nodes as it says.
        cluster: to be planned for.

    Returns:
        The rates; None where the profile has none, or none between nodes and the cluster has several. Nodes
        of one GPU have no links inside: those between them stand for these too.
    """
    node = profile.gpus_per_node
    exchanges = [
        link
        for link in json.loads(profile.to_json())["hardware"].get("links", [])
        if link["operation"] == _EXCHANGE
    ]
    widest = max(exchanges, key=lambda link: int(link["ranks"]), default=None)
    if widest is None or (cluster.gpus > cluster.gpus_per_node and widest["ranks"] <= node):
        return None
    inside = [link for link in exchanges if link["ranks"] <= node] or [widest]
    widest_inside = max(inside, key=lambda link: int(link["ranks"]))
    gpu_rate = widest_inside["gigabytes_per_s"] * (1 - 1 / widest_inside["ranks"])
    # Inside one node nothing crosses, whatever the rate.
    node_rate = cluster.gpus_per_node * gpu_rate
    if widest["ranks"] > node:
        node_rate = node * widest["gigabytes_per_s"] * (1 - node / widest["ranks"])
    return LinkRates(
        gigabytes_per_s=node_rate,
        gpu_gigabytes_per_s=gpu_rate,
        message_us=1e3 * widest["latency_ms"] / (widest["ranks"] - 1),
    )
