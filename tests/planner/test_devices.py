"""Profiles of several devices: their rates, the devices of ranks by name, and refusals."""

import pytest

from helpers import refused
from hydraulis import CostProfile
from hydraulis.planner import load_profile
from hydraulis.planner.devices import (
    RelativeSpeed,
    cluster_of_devices,
    device_profiles,
    device_rates,
    is_same_device,
    join_devices,
    number_of_device,
    relative_speed,
)
from hydraulis.planner.profile_document import with_scaled_times
from profiles import made_up_profile

CAPS = {"<1>": 4096, "<tp2>": 8192, "<pp2>": 4096, "<tp2,cp8>": 16384}
REFERENCE = made_up_profile(CAPS)


def named(*names: str) -> CostProfile:
    """Make a profile of devices with these names, the next one twice as slow as each."""
    first, *others = (made_up_profile(CAPS, device=name, slowdown=2.0**i) for i, name in enumerate(names))
    return join_devices(first, others, 8)


def test_the_rate_is_the_median_over_schemes_within_a_node() -> None:
    factors = {"<1>": 2.0, "<tp2>": 3.0, "<pp2>": 4.0, "<tp2,cp8>": 100.0}
    kind = with_scaled_times(REFERENCE, lambda scheme: 1 / factors[scheme])
    assert relative_speed(REFERENCE, kind, 8) == pytest.approx(RelativeSpeed(3.0, 2.0, 4.0))
    assert relative_speed(REFERENCE, kind, 16).greatest == pytest.approx(100.0)
    assert relative_speed(REFERENCE, REFERENCE, 8) == RelativeSpeed(1.0, 1.0, 1.0)


def test_profiles_that_do_not_compare_are_refused() -> None:
    with refused("option_invalid", "llama-7b-a800", "llama-13b-a800"):
        relative_speed(load_profile("llama-7b-a800"), load_profile("llama-13b-a800"), 8)
    with refused("option_invalid", REFERENCE.name, "8 GPUs"):
        relative_speed(REFERENCE, made_up_profile({"<tp4>": 4096}), 8)
    with refused("option_invalid", "1 GPUs"):
        relative_speed(made_up_profile({"<tp2>": 64}), made_up_profile({"<tp2>": 64}), 1)


def test_joined_devices_have_their_rates_and_ranks_their_memory() -> None:
    profile = named("A", "B", "C")
    assert device_rates(profile) == pytest.approx([1.0, 0.5, 0.25])
    assert [one.device for one in device_profiles(profile)] == ["A", "B", "C"]
    cluster = cluster_of_devices(profile, [2, 0, 0, 1], 2)
    assert cluster.rates == pytest.approx([0.25, 1.0, 1.0, 0.5])
    assert cluster.memory_bytes == [10_000_000_000] * 4
    assert cluster.devices == [2, 0, 0, 1]
    assert join_devices(REFERENCE, [], 8) == REFERENCE


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA A100-SXM4-80GB", 1),
        ("NVIDIA A100-SXM4-40GB", 0),
        ("NVIDIA H20", 2),
        ("NVIDIA H200", 3),
        ("NVIDIA H100 80GB HBM3", 4),
        ("NVIDIA H100 80GB HBM3, shared by 2 ranks", 4),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA H20 MIG 1g.12gb", None),
        ("x86_64 CPU", 5),
        ("AMD Instinct MI300X", None),
    ],
)
def test_a_rank_has_the_device_with_the_longest_name_that_its_own_contains(
    name: str, device: int | None
) -> None:
    names = ("A100-40GB", "A100-80GB", "H20-96GB", "H200-141GB", "NVIDIA H100 80GB HBM3", "cpu")
    assert number_of_device(names, name) == device


def test_the_name_of_a_data_sheet_gives_way_to_that_of_a_measurement() -> None:
    names = ["H100-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100"]
    assert number_of_device(names, "NVIDIA H100 80GB HBM3") == 1
    assert number_of_device(names, "NVIDIA H100 PCIe") == 2
    assert number_of_device(names, "NVIDIA H100 80GB") == 0
    assert number_of_device(["NVIDIA H20 MIG 1g.12gb"], "NVIDIA H20 MIG 1g.12gb") == 0


def test_a_device_has_a_long_and_a_short_name() -> None:
    for one, other in (("H100-80GB", "NVIDIA H100 80GB HBM3"), ("H20-96GB", "NVIDIA H20"), ("none", "none")):
        assert is_same_device(one, other)
        assert is_same_device(other, one)
    for one, other in (("H20-96GB", "NVIDIA H200"), ("A100-40GB", "A100-80GB"), ("fast CPU", "slow CPU")):
        assert not is_same_device(one, other)
