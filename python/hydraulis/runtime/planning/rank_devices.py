"""The device of each rank, as the cost profile of a run numbers it."""

import json
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from hydraulis._core import Cluster, CostProfile
from hydraulis.errors import InvalidInputError
from hydraulis.planner.devices import cluster_of_devices, device_of_name, device_profiles
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import device_name
from hydraulis.runtime.ranks.rank_zero import from_rank_zero


class RankDevice(NamedTuple):
    """The device of a rank.

    Attributes:
        host: Name of the rank's host.
        device: Name of its device.
    """

    host: str
    device: str


def with_rank_devices(
    cluster: Cluster, profile: CostProfile, device: torch.device, note: Callable[[str], None]
) -> Cluster:
    """Return the cluster with the device, rate and memory of each rank. Collective.

    With a profile of one device the cluster stays as it is.

    Args:
        cluster: Cluster of the run's ranks.
        profile: Cost profile of the run.
        device: Device of this rank.
        note: Callback on rank 0 for a message about ranks that differ from the profile's device.

    Raises:
        InvalidInputError: The profile has several devices, and a rank's is none of them (code
            `profile_mismatch`).
    """
    ranks = host.gather_objects(RankDevice(socket.gethostname(), device_name(device))) or []

    def numbers() -> str:
        if profile.other_devices:
            return json.dumps(device_numbers(profile, ranks))
        message = mixture_note(profile, ranks)
        if message:
            note(message)
        return "[]"

    devices = json.loads(from_rank_zero(numbers))
    return cluster_of_devices(profile, devices, cluster.gpus_per_node) if devices else cluster


def device_numbers(profile: CostProfile, ranks: Sequence[RankDevice]) -> list[int]:
    """Return the number of each rank's device in the profile.

    Raises:
        InvalidInputError: A rank's device is none of the profile's (code `profile_mismatch`).
    """
    numbers = []
    for rank, one in enumerate(ranks):
        number = device_of_name(profile, one.device)
        if number is None:
            known = ", ".join(other.device for other in device_profiles(profile))
            message = (
                f"rank {rank} on {one.host} computes on {one.device}, and the profile '{profile.name}' has "
                f"times of {known}; add a profile of this device to planner.device_profiles (hydraulis "
                "profile RUN.toml on such a node)"
            )
            raise InvalidInputError(message, code="profile_mismatch")
        numbers.append(number)
    return numbers


def mixture_note(profile: CostProfile, ranks: Sequence[RankDevice]) -> str:
    """Return the message that a profile of one device plans for several; empty if all ranks have the same."""
    names = sorted({one.device for one in ranks})
    if len(names) < 2:
        return ""
    counts = (f"{sum(one.device == name for one in ranks)} of {name}" for name in names)
    return (
        f"the ranks have several devices ({', '.join(counts)}), and plans count with the times of "
        f"'{profile.name}' for all of them; planner.device_profiles gives each kind its own"
    )
