"""Clusters with nodes of several kinds, stated by a cost profile of each kind."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from hydraulis._core import Cluster, CostProfile
from hydraulis.errors import InvalidInputError
from hydraulis.planner.devices import cluster_of_devices, join_devices, relative_speed
from hydraulis.planner.profile import ANALYTIC, load_profile


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one kind.

    Attributes:
        nodes: Number of nodes.
        profile: Cost profile of the model on the kind's devices.
    """

    nodes: int
    profile: CostProfile


class MixedNodes(NamedTuple):
    """The arguments of a planner for nodes of several kinds.

    Attributes:
        profile: Profile of all devices.
        cluster: Cluster whose ranks have the rate, the memory and the device of their node's kind.
    """

    profile: CostProfile
    cluster: Cluster


def mix_nodes(reference: CostProfile, kinds: Sequence[NodeKind], gpus_per_node: int) -> MixedNodes:
    """Build the profile and the cluster of these nodes, one kind after another in the order of ranks.

    Args:
        reference: Cost profile of rate 1; its strategies and bytes hold for all nodes.
        kinds: Nodes of each kind.
        gpus_per_node: GPUs of every node.

    Raises:
        InvalidInputError: The cluster is refused (see `Cluster`), or a kind does not compare with the
            reference (see `relative_speed`) or has another sharding (code `profile_invalid`).
    """
    # Refused before lists of all ranks are made.
    Cluster(sum(kind.nodes for kind in kinds) * gpus_per_node, gpus_per_node)
    profiles = [reference]
    for kind in kinds:
        if kind.profile not in profiles:
            profiles.append(kind.profile)
    devices = chain.from_iterable(
        [profiles.index(kind.profile)] * (kind.nodes * gpus_per_node) for kind in kinds
    )
    profile = join_devices(reference, profiles[1:], gpus_per_node)
    return MixedNodes(profile, cluster_of_devices(profile, list(devices), gpus_per_node))


def parse_nodes(field: str, text: str, reference: str) -> list[NodeKind]:
    """Parse `COUNTxKIND;COUNTxKIND...`.

    Args:
        field: Name of the option, for messages.
        text: Nodes of each kind, in the order of ranks. KIND is the name or the file of a cost profile; if
            the reference is `analytic:MODEL:DEVICE`, KIND is another DEVICE.
        reference: Name of the reference profile.

    Raises:
        InvalidInputError: The text has another form (code `option_invalid`), or a profile is refused (see
            `load_profile`).
    """
    kinds = []
    for entry in filter(None, map(str.strip, text.split(";"))):
        # A predicted profile's name has its kinds of checkpointing after commas, a device has none.
        name = r"[^,]+" if reference.startswith(ANALYTIC) else r".+"
        found = re.fullmatch(rf"([1-9][0-9]{{0,5}})x({name})", entry)
        if found is None:
            message = (
                f"{field} = {text!r}: {entry!r} must be COUNTxKIND, such as 4xprofile.json, or 4xA100-80GB "
                "with an analytic profile"
            )
            raise InvalidInputError(message, code="option_invalid")
        kinds.append(NodeKind(int(found[1]), _profile_of(field, found[2], reference)))
    if not kinds:
        message = f"{field} = {text!r} names no nodes: write COUNTxKIND;COUNTxKIND"
        raise InvalidInputError(message, code="option_invalid")
    return kinds


def describe_nodes(reference: CostProfile, kinds: Sequence[NodeKind], gpus_per_node: int) -> Iterator[str]:
    """Describe each kind's nodes, ranks and rate, a line for each."""
    first = 0
    for kind in kinds:
        last = first + kind.nodes * gpus_per_node - 1
        speed = relative_speed(reference, kind.profile, gpus_per_node)
        spread = (
            "" if speed.least == speed.greatest else f" ({speed.least:.2f} to {speed.greatest:.2f} by scheme)"
        )
        yield (
            f"{kind.nodes} x {gpus_per_node} {kind.profile.device}, ranks {first}-{last}: "
            f"rate {speed.rate:.2f}{spread}, {kind.profile.memory_bytes / 1e9:.0f} GB"
        )
        first = last + 1


def _profile_of(field: str, kind: str, reference: str) -> CostProfile:
    """Load a kind's profile: of the reference's model and checkpointing if that is analytic."""
    if reference.startswith(ANALYTIC):
        return load_profile(_analytic_name(kind, reference))
    try:
        return load_profile(kind)
    except InvalidInputError as error:
        if error.code != "profile_unknown":
            raise
        message = f"{field}: {error}; a device's name needs --profile {ANALYTIC}MODEL:DEVICE"
        raise InvalidInputError(message, code=error.code) from None


def _analytic_name(kind: str, reference: str) -> str:
    model, _, device = reference.rpartition(":")
    _, *checkpointing = device.split(",")
    return ",".join([f"{model}:{kind}", *checkpointing])
