"""Each rank has the device of the profile that its own name says; other devices are refused or noted."""

import socket

import torch.distributed as dist

from helpers import lacks, refused
from hydraulis import Cluster, CostProfile
from hydraulis.planner.devices import join_devices
from hydraulis.runtime.planning import rank_devices
from hydraulis.runtime.planning.rank_devices import (
    RankDevice,
    device_numbers,
    mixture_note,
    other_device_note,
    with_rank_devices,
)
from hydraulis.runtime.ranks.device import CPU, device_name
from profiles import made_up_profile
from ranks import run_ranks

FAST = made_up_profile({"<1>": 64}, device="fast CPU")
BOTH = join_devices(FAST, [made_up_profile({"<1>": 64}, device="slow CPU", slowdown=4.0)], 2)


def on_pretended_devices(profile: CostProfile) -> tuple[Cluster, list[str]]:
    name = "fast CPU" if dist.get_rank() % 2 else "slow CPU"
    setattr(rank_devices, "device_name", lambda _: name)  # noqa: B010
    notes: list[str] = []
    return with_rank_devices(Cluster(4, 2), profile, CPU, notes.append), notes


def test_all_ranks_know_the_device_of_each() -> None:
    for cluster, notes in run_ranks(4, on_pretended_devices, BOTH):
        assert cluster.devices == [1, 0, 1, 0]
        assert cluster.rates == [0.25, 1.0, 0.25, 1.0]
        assert cluster.memory_bytes == [10_000_000_000] * 4
        assert notes == []


def test_a_profile_of_one_device_is_used_for_all_and_rank_0_says_so() -> None:
    (first, (note,)), *others = run_ranks(4, on_pretended_devices, FAST)
    assert first == Cluster(4, 2)
    assert others == [(Cluster(4, 2), [])] * 3
    assert "2 of fast CPU, 2 of slow CPU" in note
    assert "planner.device_profiles" in note


def test_equal_ranks_are_not_noted() -> None:
    assert mixture_note(FAST, [RankDevice("here", "slow CPU")] * 4) == ""


def test_a_profile_of_another_device_than_the_ranks_is_noted() -> None:
    assert lacks(other_device_note(FAST, "slow CPU"), "compute on slow CPU", "of fast CPU", "'made-up'") == []
    assert other_device_note(FAST, "Fast cpu") == ""


def test_a_device_without_a_profile_is_refused_by_rank_and_host() -> None:
    ranks = [RankDevice("a", "slow CPU"), RankDevice("b", device_name(CPU))]
    with refused("profile_mismatch", "rank 1 on b", device_name(CPU), "fast CPU, slow CPU"):
        device_numbers(BOTH, ranks)
    enough = RankDevice("a", "slow CPU", 9_800_000_000)
    with refused("profile_mismatch", "rank 1 on a", "9,400,000,000 bytes", "10,000,000,000 for slow CPU"):
        device_numbers(BOTH, [enough, enough._replace(memory_bytes=9_400_000_000)])
    assert device_numbers(BOTH, [enough]) == [1]
    assert device_numbers(BOTH, [RankDevice(socket.gethostname(), "Fast cpu")]) == [0]
