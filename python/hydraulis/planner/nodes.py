"""Clusters with nodes of several kinds, each with a cost profile of its own.

A kind's rate is the time of a micro-batch under the reference profile over its time under the kind's own
profile: the median over schemes within a node and three lengths. Replicas on nodes of one kind take the times
of its profile. The rates put the ranks in one order, and compare the stages of a pipeline on several kinds.
Links and memory figures are those of the reference profile.
"""

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.errors import InvalidInputError
from hydraulis.planner.profile import ANALYTIC, load_profile

T = TypeVar("T")

# Micro-batches of sequences of these tokens, with about as many tokens each.
_MICRO_BATCHES = ([1_024] * 8, [4_096] * 2, [8_192])


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one kind.

    Attributes:
        nodes: Number of nodes.
        profile: Cost profile of the model on the kind's devices.
    """

    nodes: int
    profile: CostProfile


@dataclass(frozen=True, slots=True)
class RelativeSpeed:
    """Speed of a kind's devices relative to those of a reference profile.

    Attributes:
        rate: Median over schemes and lengths.
        least: Least ratio of any scheme and length.
        greatest: Greatest ratio of any scheme and length.
    """

    rate: float
    least: float
    greatest: float


def relative_speed(reference: CostProfile, profile: CostProfile, gpus_per_node: int) -> RelativeSpeed:
    """Compare two profiles of a model by their common schemes whose stages are within a node.

    Raises:
        InvalidInputError: The profiles are of different models or have no such scheme in common (code
            `option_invalid`).
    """
    if reference.model != profile.model:
        message = (
            f"profiles '{reference.name}' and '{profile.name}' are of different models: state the nodes of a "
            "cluster by profiles of one model"
        )
        raise InvalidInputError(message, code="option_invalid")
    common = [Scheme(text) for text in reference.schemes if text in set(profile.schemes)]
    ratios = [
        reference.micro_batch_ms(scheme, lengths) / profile.micro_batch_ms(scheme, lengths)
        for scheme in common
        if scheme.tp * scheme.cp <= gpus_per_node
        for lengths in _MICRO_BATCHES
    ]
    if not ratios:
        message = (
            f"profiles '{reference.name}' and '{profile.name}' have no scheme in common within "
            f"{gpus_per_node} GPUs: use profiles of the same schemes"
        )
        raise InvalidInputError(message, code="option_invalid")
    return RelativeSpeed(statistics.median(ratios), min(ratios), max(ratios))


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
        reference: Cost profile of rate 1; its strategies, links and memory figures hold for all nodes.
        kinds: Nodes of each kind.
        gpus_per_node: GPUs of every node.

    Raises:
        InvalidInputError: A kind does not compare with the reference (see `relative_speed`), or has another
            sharding (code `profile_invalid`).
    """
    profiles = [reference]
    for kind in kinds:
        if kind.profile not in profiles:
            profiles.append(kind.profile)
    rates = [relative_speed(reference, profile, gpus_per_node).rate for profile in profiles]
    devices = [profiles.index(kind.profile) for kind in kinds]
    ranks = [kind.nodes * gpus_per_node for kind in kinds]
    cluster = Cluster(
        sum(ranks),
        gpus_per_node,
        rates=_repeated([rates[device] for device in devices], ranks),
        memory_bytes=_repeated([kind.profile.memory_bytes for kind in kinds], ranks),
        devices=_repeated(devices, ranks),
    )
    others = list(zip(rates[1:], profiles[1:], strict=True))
    return MixedNodes(reference.with_other_devices(others) if others else reference, cluster)


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
                f"{field} = {text!r}: {entry!r} must be COUNTxKIND, such as 4xA100-80GB or 4xprofile.json"
            )
            raise InvalidInputError(message, code="option_invalid")
        kinds.append(NodeKind(int(found[1]), load_profile(_profile_name(found[2], reference))))
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


def _profile_name(kind: str, reference: str) -> str:
    """Return the name of a kind's profile: of the reference's model and checkpointing if that is analytic."""
    if not reference.startswith(ANALYTIC):
        return kind
    model, _, device = reference.rpartition(":")
    _, *checkpointing = device.split(",")
    return ",".join([f"{model}:{kind}", *checkpointing])


def _repeated(values: Sequence[T], counts: Sequence[int]) -> list[T]:
    return list(chain.from_iterable([value] * count for value, count in zip(values, counts, strict=True)))
