"""The links of a cluster: as stated, or from what a profile has measured of them."""

import json

from hydraulis._core import Cluster, CostProfile, Link, ModelShape, Network, ParameterTable
from hydraulis.config.link_rates import LinkRates
from hydraulis.config.planner import LINK_OF_PROFILE, NO_LINK
from hydraulis.errors import InvalidInputError

_EXCHANGE = "all_to_all"
_ITEMSIZE = {"bfloat16": 2, "float32": 4, "float64": 8}
# What profiles that do not say were measured in.
_USUAL_DTYPE = "bfloat16"
# Gradients are added up, and travel, in no less.
_LEAST_GRADIENT_BYTES = 4


def stated_rates(field: str, text: str, profile: CostProfile, cluster: Cluster) -> LinkRates | None:
    """Give the rates that a text asks for.

    Args:
        field: that the text is the value of, for messages.
        text: `profile` for what the profile has measured, `none`, or `NODE[,GPU[,MESSAGE]]`.
        profile: with or without measured links.
        cluster: to be planned for.

    Returns:
        The rates; None for `none`, for one rank alone, and where the profile has none for the cluster.

    Raises:
        InvalidInputError: the text is none of these (code `config_value`).
    """
    if text == NO_LINK:
        return None
    rates = measured_rates(profile, cluster) if text == LINK_OF_PROFILE else LinkRates.parse(field, text)
    return None if cluster.gpus == 1 else rates


def link_of(profile: CostProfile, rates: LinkRates) -> Link:
    """Give links of these rates for the profile's model, in the types in which training moves it.

    Raises:
        InvalidInputError: the profile does not say of which model it is (code `link_model`).
    """
    itemsize = _itemsize(profile)
    return Link(
        ParameterTable.of_model(_model(profile)),
        gigabytes_per_s=rates.gigabytes_per_s,
        gpu_gigabytes_per_s=rates.gpu_gigabytes_per_s,
        message_us=rates.message_us,
        parameter_bytes=itemsize,
        gradient_bytes=max(itemsize, _LEAST_GRADIENT_BYTES),
    )


def network_of(profile: CostProfile, rates: LinkRates) -> Network:
    """Give the wires between stages by these rates: hidden states of the profile's model travel over them.

    Raises:
        InvalidInputError: the profile does not say of which model it is (code `link_model`).
    """
    hidden_size: int = json.loads(_model(profile).to_json())["hidden_size"]
    return Network(
        token_bytes=hidden_size * _itemsize(profile),
        inside_gigabytes_per_s=rates.gpu_gigabytes_per_s,
        between_gigabytes_per_s=rates.gigabytes_per_s,
        inside_latency_ms=rates.message_us / 1e3,
        between_latency_ms=rates.message_us / 1e3,
    )


def _model(profile: CostProfile) -> ModelShape:
    if profile.model is None:
        message = (
            f"cost profile {profile.name!r} does not say of which model it is, so what travels over links is "
            "not known: add 'model' to it, or leave links out"
        )
        raise InvalidInputError(message, code="link_model")
    return profile.model


def _itemsize(profile: CostProfile) -> int:
    return _ITEMSIZE[profile.dtype or _USUAL_DTYPE]


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
