"""Ranks on one device: refused unless requested, accepted by NCCL, and marked in all that a run writes."""

import os

import pytest
import torch
import torch.distributed as dist

from helpers import refused
from hydraulis.runtime.ranks import device as device_module
from hydraulis.runtime.ranks import shared_devices
from hydraulis.runtime.ranks.device import CPU, choose_device, device_name, prepare_device
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE, memory_share, ranks_per_device

CUDA = torch.device("cuda", 0)
SET_BY_SHARING = (
    *shared_devices._NCCL_SETTINGS,
    *shared_devices._TORCH_SETTINGS,
    *shared_devices._MULTI_RANK_SETTINGS,
    "NCCL_HOSTID",
    "NCCL_SOCKET_IFNAME",
)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make a node of 8 ranks and one device, in an environment without NCCL's variables."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H100")
    for name in (*SET_BY_SHARING, SHARE_VARIABLE):
        # Set first, so that the end of the test also takes away a value that the test sets.
        monkeypatch.setenv(name, "")
        del os.environ[name]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "8")
    use_nccl(monkeypatch, (2, 28, 9))
    be_rank(monkeypatch, 0)
    return monkeypatch


def be_rank(node: pytest.MonkeyPatch, rank: int) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        node.setenv(name, str(rank))


def use_nccl(node: pytest.MonkeyPatch, version: tuple[int, ...]) -> None:
    node.setattr(dist, "is_nccl_available", lambda: True)
    node.setattr("torch.cuda.nccl.version", lambda: version)


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_ranks_share_a_device_only_where_it_is_requested(node: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        node.setenv(SHARE_VARIABLE, value)
    with refused("device_missing", "8 ranks", "1 CUDA device", "HYDRAULIS_SHARE_DEVICES=1"):
        choose_device("cuda")
    assert not any(name in os.environ for name in SET_BY_SHARING)


def test_ranks_take_the_devices_in_turn(node: pytest.MonkeyPatch) -> None:
    node.setenv(SHARE_VARIABLE, "1")
    node.setattr(torch.cuda, "device_count", lambda: 3)
    taken = []
    for rank in range(8):
        be_rank(node, rank)
        taken.append(choose_device("cuda").index)
    assert taken == [0, 1, 2, 0, 1, 2, 0, 1]
    assert ranks_per_device(CUDA) == 3


@pytest.mark.parametrize(
    ("version", "has_multi_rank"),
    [((2, 28, 9), False), ((2, 29, 7), False), ((2, 30, 3), True), ((2, 31), True), ((3, 0, 1), True)],
)
def test_nccl_accepts_ranks_on_one_device(
    node: pytest.MonkeyPatch, version: tuple[int, ...], *, has_multi_rank: bool
) -> None:
    use_nccl(node, version)
    node.setenv(SHARE_VARIABLE, "1")
    hosts = []
    for rank in range(8):
        be_rank(node, rank)
        node.delenv("NCCL_HOSTID", raising=False)
        assert choose_device("cuda") == CUDA
        hosts.append(os.environ["NCCL_HOSTID"])
    assert len(set(hosts)) == 8
    assert (os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1") is has_multi_rank
    assert ("NCCL_NET_GDR_LEVEL" in os.environ) is has_multi_rank
    assert os.environ["NCCL_SOCKET_IFNAME"].startswith("lo")
    for name, value in shared_devices._NCCL_SETTINGS.items():
        assert os.environ[name] == value


def test_the_environment_overrides_each_setting(node: pytest.MonkeyPatch) -> None:
    use_nccl(node, (2, 30, 3))
    node.setenv(SHARE_VARIABLE, "1")
    for name in SET_BY_SHARING:
        node.setenv(name, "the user's")
    choose_device("cuda")
    assert {os.environ[name] for name in SET_BY_SHARING} == {"the user's"}


def test_ranks_of_several_nodes_exchange_over_the_network(node: pytest.MonkeyPatch) -> None:
    node.setenv(SHARE_VARIABLE, "1")
    node.setenv("WORLD_SIZE", "16")
    be_rank(node, 5)
    node.setenv("RANK", "13")
    choose_device("cuda")
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    # Nodes count their ranks from 0 each.
    assert os.environ["NCCL_HOSTID"] == "hydraulis-13"


def test_a_rank_with_a_device_of_its_own_is_not_changed(node: pytest.MonkeyPatch) -> None:
    node.setenv(SHARE_VARIABLE, "1")
    node.setattr(torch.cuda, "device_count", lambda: 8)
    be_rank(node, 5)
    assert choose_device("cuda") == torch.device("cuda", 5)
    assert not any(name in os.environ for name in SET_BY_SHARING)
    assert memory_share(CUDA) is None
    assert device_name(CUDA) == "NVIDIA H100"


def test_the_allocators_of_a_device_fit_it_together(node: pytest.MonkeyPatch) -> None:
    shares: list[tuple[float, torch.device]] = []
    node.setattr(device_module, "_set_allocator", lambda _settings: None)
    node.setattr(torch.cuda, "set_device", lambda _device: None)
    node.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append((share, device))
    )
    prepare_device(CUDA)
    assert shares == []
    node.setenv(SHARE_VARIABLE, "1")
    prepare_device(CUDA)
    ((share, device),) = shares
    assert device == CUDA
    assert 0.8 < 8 * share < 1


def test_the_name_of_a_shared_device_states_the_sharing(node: pytest.MonkeyPatch) -> None:
    assert device_name(CUDA) == "NVIDIA H100"
    node.setenv(SHARE_VARIABLE, "1")
    assert device_name(CUDA) == "NVIDIA H100, shared by 8 ranks"
    assert ranks_per_device(CPU) == 1


def test_a_build_without_nccl_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert shared_devices._nccl_version() == ()
