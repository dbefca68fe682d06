"""The links of a cluster, as a configuration or a command names them.

Nodes of several kinds may have links of several rates. Transfers between nodes are predicted at the rate of
the fastest node's links; those of slower nodes take longer by a factor. In a node the slowest kind decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydraulis._core import Cluster, CostProfile, Link, LinkRates, Network
from hydraulis.config.planner import EVERY_DEVICE, LINK_FROM_PROFILE, NO_LINK, parse_link_rates
from hydraulis.errors import InvalidInputError
from hydraulis.planner.devices import device_profiles, number_of_device

MOST_SLOWDOWN = 1000.0
"""Greatest slowdown that `Link.with_node_slowdowns` accepts."""


@dataclass(frozen=True, slots=True)
class ClusterLinks:
    """The links of a cluster.

    Attributes:
        rates: Rates; the one between nodes is that of the fastest node.
        node_slowdowns: Factor of the time of each node's transfers to other nodes; empty for equal links.
    """

    rates: LinkRates
    node_slowdowns: tuple[float, ...] = ()

    def of_profile(self, profile: CostProfile) -> Link:
        """Return these links with the transfers of the profile's model; see `Link.of_profile`."""
        return Link.of_profile(profile, self.rates).with_node_slowdowns(self.node_slowdowns)


def resolve_links(field: str, text: str, profile: CostProfile, cluster: Cluster) -> ClusterLinks | None:
    """Resolve a text to the links of a cluster.

    Args:
        field: Name of the key or option with the text, for messages.
        text: `profile` for the links that each device's profile measured, or those of the first device where
            it has none; `none`; or rates as in `parse_link_rates`.
        profile: Cost profile, with or without measured links.
        cluster: Cluster to plan for.

    Returns:
        The links; None for `none`, for a cluster of one rank, and for a profile without links of the cluster.

    Raises:
        InvalidInputError: The text is invalid, or names other devices than the cluster's (code
            `config_value`), or a profile's rates are beyond the limits (`argument_invalid`).
    """
    if text == NO_LINK:
        return None
    of_device = (
        _measured(profile, cluster)
        if text == LINK_FROM_PROFILE
        else _stated(field, text, [one.device for one in device_profiles(profile)], cluster)
    )
    if of_device is None or cluster.gpus == 1:
        return None
    links = _join(of_device, cluster)
    if max(links.node_slowdowns, default=1.0) > MOST_SLOWDOWN:
        message = (
            f"{field} = {text!r}: the links of some nodes are {max(links.node_slowdowns):,.0f} times as fast "
            f"as those of others, and at most {MOST_SLOWDOWN:,.0f} times is planned for; correct the rates"
        )
        raise InvalidInputError(message, code="config_value")
    return links


def resolve_network(text: str, profile: CostProfile, links: ClusterLinks) -> Network:
    """Resolve a text to the network for messages between pipeline stages.

    Args:
        text: Text as in `resolve_links`.
        profile: Cost profile, with or without measured links.
        links: Links of the text.

    Returns:
        For `profile`, the wires that the profile measured point to point; for stated rates, and for a profile
        without such wires, wires with the rates of the links, of the slowest node's where nodes differ.

    Raises:
        InvalidInputError: The profile does not name its model (code `profile_invalid`), or its measurement is
            no rate or latency (`argument_invalid`).
    """
    rates = LinkRates(
        gigabytes_per_s=links.rates.gigabytes_per_s / max(links.node_slowdowns, default=1.0),
        gpu_gigabytes_per_s=links.rates.gpu_gigabytes_per_s,
        message_us=links.rates.message_us,
    )
    return (Network.measured if text == LINK_FROM_PROFILE else Network.of_profile)(profile, rates)


def _measured(profile: CostProfile, cluster: Cluster) -> dict[int, LinkRates] | None:
    """Return the measured rates of each device that ranks have; None if it and the first device have none."""
    measured = [LinkRates.measured(one, cluster) for one in device_profiles(profile)]
    found = {device: measured[device] or measured[0] for device in _present(cluster)}
    rates = {device: one for device, one in found.items() if one is not None}
    return rates if len(rates) == len(found) else None


def _stated(field: str, text: str, devices: Sequence[str], cluster: Cluster) -> dict[int, LinkRates]:
    """Return the stated rates of each device that ranks have."""
    stated = parse_link_rates(field, text)
    present = _present(cluster)
    if EVERY_DEVICE in stated:
        return dict.fromkeys(present, stated[EVERY_DEVICE])
    names = list(stated)
    places = [number_of_device(names, device) for device in devices]
    if unknown := [name for place, name in enumerate(names) if place not in places]:
        message = (
            f"{field} = {text!r}: no profile is of the device {unknown[0]!r}: write one of "
            f"{', '.join(dict.fromkeys(devices))}"
        )
        raise InvalidInputError(message, code="config_value")
    found = {}
    for device in present:
        place = places[device]
        if place is None:
            name = devices[device]
            message = f"{field} = {text!r} has no rates for {name}: add {name}=NODE[,GPU[,MESSAGE]]"
            raise InvalidInputError(message, code="config_value")
        found[device] = stated[names[place]]
    return found


def _present(cluster: Cluster) -> list[int]:
    """Return the devices that ranks have."""
    return sorted(set(cluster.devices or [0]))


def _join(of_device: Mapping[int, LinkRates], cluster: Cluster) -> ClusterLinks:
    """Join the rates of devices to those of a cluster of their nodes."""
    devices, node = cluster.devices or [0] * cluster.gpus, cluster.gpus_per_node
    of_node = [
        min(of_device[device].gigabytes_per_s for device in devices[first : first + node])
        for first in range(0, cluster.gpus, node)
    ]
    fastest = max(of_node)
    rates = LinkRates(
        gigabytes_per_s=fastest,
        gpu_gigabytes_per_s=min(one.gpu_gigabytes_per_s for one in of_device.values()),
        message_us=max(one.message_us for one in of_device.values()),
    )
    slowdowns = tuple(fastest / rate for rate in of_node)
    return ClusterLinks(rates, slowdowns if max(slowdowns) > 1 else ())
