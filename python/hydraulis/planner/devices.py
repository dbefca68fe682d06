"""Profiles of several devices: the cost profile of each kind of ranks in a cluster.

A device's rate is the time of a micro-batch under the first device's profile over its time under the device's
own profile: the median over schemes within a node and three lengths. Replicas on ranks of one kind take the
times of its profile. The rates put the ranks in one order, and compare the stages of a pipeline on several
kinds. The bytes of parameters and activations are those of the first profile; `links.py` has the links.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.errors import InvalidInputError

_MEMORY_SIZE = re.compile(r"[0-9]+gb")

# Micro-batches of sequences of these tokens, with about as many tokens each.
_MICRO_BATCHES = ([1_024] * 8, [4_096] * 2, [8_192])


@dataclass(frozen=True, slots=True)
class RelativeSpeed:
    """Speed of a device relative to that of a reference profile.

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


def join_devices(reference: CostProfile, others: Sequence[CostProfile], gpus_per_node: int) -> CostProfile:
    """Return the profile of all these devices, each with its rate relative to the reference.

    Args:
        reference: Profile of rate 1; its strategies and bytes hold for all devices.
        others: Profile of each other device.
        gpus_per_node: GPUs of every node.

    Raises:
        InvalidInputError: A profile does not compare with the reference (see `relative_speed`), or has
            another sharding or type (code `profile_invalid`).
    """
    rated = [(relative_speed(reference, profile, gpus_per_node).rate, profile) for profile in others]
    return reference.with_other_devices(rated) if rated else reference


def device_profiles(profile: CostProfile) -> list[CostProfile]:
    """Return the profile of each device by its number."""
    return [profile, *(other for _, other in profile.other_devices)]


def device_rates(profile: CostProfile) -> list[float]:
    """Return the rate of each device by its number."""
    return [1.0, *(rate for rate, _ in profile.other_devices)]


def cluster_of_devices(profile: CostProfile, devices: Sequence[int], gpus_per_node: int) -> Cluster:
    """Build the cluster whose ranks have these devices, each with its device's rate and memory.

    If all are the first device, the cluster states neither: plans for equal ranks are made faster.
    """
    if not any(devices):
        return Cluster(len(devices), gpus_per_node)
    rates = device_rates(profile)
    memory_bytes = [one.memory_bytes for one in device_profiles(profile)]
    return Cluster(
        len(devices),
        gpus_per_node,
        rates=[rates[device] for device in devices],
        memory_bytes=[memory_bytes[device] for device in devices],
        devices=devices,
    )


def number_of_device(devices: Sequence[str], name: str) -> int | None:
    """Return the place of the device that has this name or a shorter one.

    A shorter name has some of the words: `H100-80GB` of a data sheet is torch's `NVIDIA H100 80GB HBM3`. The
    size of memory counts only if `name` has one. A part of a device (`MIG`) has no shorter name.

    Returns:
        The place of the device with most of the words; None if no device has such a name.
    """
    words, known = _words(name), [_words(device) for device in devices]
    fitting = [place for place, its in enumerate(known) if _is_short_for(its, words)]
    return max(fitting, key=lambda place: len(known[place] & words), default=None)


def is_same_device(one: str, other: str) -> bool:
    """Return whether two names are of the same device; one may be shorter (see `number_of_device`)."""
    return _is_short_for(_words(one), _words(other)) or _is_short_for(_words(other), _words(one))


def _is_short_for(short: set[str], long: set[str]) -> bool:
    """Return whether all words of a name are in another, but for a size of memory that the other lacks."""
    has_size = any(map(_MEMORY_SIZE.fullmatch, long))
    is_part = "mig" in long and "mig" not in short
    return not is_part and {word for word in short if has_size or not _MEMORY_SIZE.fullmatch(word)} <= long


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower())) - {""}
