"""The device of each rank, as the cost profile of a run numbers it."""

import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from hydraulis._core import Cluster, CostProfile
from hydraulis.errors import InvalidInputError
from hydraulis.planner.devices import cluster_of_devices, device_profiles, number_of_device
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import device_name
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.ranks.shared_devices import ranks_per_device

# A data sheet states up to 2 % more memory than the driver gives.
_LEAST_SHARE = 0.95


class RankDevice(NamedTuple):
    """The device of a rank.

    Attributes:
        host: Name of the rank's host.
        device: Name of its device.
        memory_bytes: Memory of the device for the rank; None on the CPU.
    """

    host: str
    device: str
    memory_bytes: int | None = None


def with_rank_devices(
    cluster: Cluster, profile: CostProfile, device: torch.device, note: Callable[[str], None]
) -> Cluster:
    """Return the cluster with the device, rate and memory of each rank. Collective.

    With a profile of one device the cluster stays as it is.

    Args:
        cluster: Cluster of the run's ranks.
        profile: Cost profile of the run.
        device: Device of this rank.
        note: Callback on rank 0 for a message about ranks of different devices, or of another than the
            profile's.

    Raises:
        InvalidInputError: The profile has several devices, and a rank's is none of them or has less memory
            (code `profile_mismatch`).
    """
    own = RankDevice(socket.gethostname(), device_name(device), _memory_bytes(device))
    ranks = host.gather_objects(own) or []

    def numbers() -> list[int]:
        if profile.other_devices:
            return device_numbers(profile, ranks)
        message = mixture_note(profile, ranks) or other_device_note(profile, ranks[0].device)
        if message:
            note(message)
        return []

    devices = from_rank_zero(numbers)
    return cluster_of_devices(profile, devices, cluster.gpus_per_node) if devices else cluster


def device_numbers(profile: CostProfile, ranks: Sequence[RankDevice]) -> list[int]:
    """Return the number of each rank's device in the profile.

    Raises:
        InvalidInputError: A rank's device is none of the profile's, or has less memory (code
            `profile_mismatch`).
    """
    of_devices = device_profiles(profile)
    names = [one.device for one in of_devices]
    numbers = []
    for rank, one in enumerate(ranks):
        place = f"rank {rank} on {one.host} computes on {one.device}"
        number = number_of_device(names, one.device)
        if number is None:
            message = (
                f"{place}, and the profile '{profile.name}' has times of {', '.join(names)}; measure a "
                "profile on such a node (hydraulis profile RUN.toml), and name the profiles of all devices "
                "in planner.profile and planner.device_profiles"
            )
            raise InvalidInputError(message, code="profile_mismatch")
        planned = of_devices[number].memory_bytes
        if one.memory_bytes is not None and one.memory_bytes < _LEAST_SHARE * planned:
            message = (
                f"{place} with {one.memory_bytes:,} bytes, and profile '{of_devices[number].name}' plans "
                f"{planned:,} for {names[number]}; measure a profile on such a node (hydraulis profile "
                "RUN.toml)"
            )
            raise InvalidInputError(message, code="profile_mismatch")
        numbers.append(number)
    return numbers


def _memory_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory) // ranks_per_device(device)


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


def other_device_note(profile: CostProfile, device: str, own: str = "the ranks compute on") -> str:
    """Return the message that a profile of one device plans for another; empty for the same one.

    Args:
        profile: Profile of one device.
        device: Name of the other device.
        own: Words in front of that name.
    """
    if number_of_device([profile.device], device) is not None:
        return ""
    return (
        f"{own} {device}, and plans count with the times and the memory of {profile.device}, "
        f"the device of '{profile.name}'"
    )
