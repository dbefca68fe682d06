"""A cluster's links: as stated, or from what a profile has measured of them."""

from hydraulis._core import Cluster, CostProfile, LinkRates, Network
from hydraulis.config.planner import LINK_OF_PROFILE, NO_LINK
from hydraulis.config.planner_values import parse_link_rates


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
    rates = LinkRates.measured(profile, cluster) if text == LINK_OF_PROFILE else parse_link_rates(field, text)
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
