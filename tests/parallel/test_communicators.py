"""Channels, memory and kernels of NCCL communicators, against figures from NCCL's sources; no device."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from helpers import refused
from hydraulis import Cluster, Scheme
from hydraulis.config.train import TrainConfig
from hydraulis.parallel import communicators
from hydraulis.parallel.communicators import (
    Channels,
    check_kernels_in_flight,
    communicator_bytes,
    nccl_options,
)
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.text.values import MIB

TIMEOUT = timedelta(seconds=7)
CUDA = torch.device("cuda", 0)
NODE = Cluster(gpus=8, gpus_per_node=8)
NODES = Cluster(gpus=32, gpus_per_node=8)


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)


def of(*schemes: str) -> list[Scheme]:
    return [Scheme(scheme) for scheme in schemes]


# 0.66, 0.28, 0.09 and 2.6 GiB for groups of 8, 4, 2 and 8 ranks with 8 or 32 channels.
@pytest.mark.parametrize(
    ("ranks", "channels", "mib"), [(8, 8, 672), (4, 8, 288), (2, 8, 96), (8, 32, 2688), (1, 8, 0)]
)
def test_an_exchange_connects_each_channel_to_each_rank_of_the_node(
    ranks: int, channels: int, mib: int
) -> None:
    cluster = Cluster(gpus=ranks, gpus_per_node=ranks)
    # One channel of WORLD's ring, which sums the step's numbers.
    world = 18 * MIB if ranks > 1 else 0
    assert communicator_bytes(of("<1>"), cluster, Channels(channels, 1)) == mib * MIB + world


@pytest.mark.parametrize(
    ("schemes", "mib"),
    [
        (["<tp2>"], 12 + 18),
        (["<tp2>", "<tp4>", "<tp2,full>", "<tp8>"], (12 + 36 + 84) + 3 * 18),
        # A context group exchanges with its ranks alone, and has no ring.
        (["<cp4>"], 36),
        (["<tp2,cp2>"], 12 + 18 + 12),
        # Stages of 1 and of 2 ranks: two neighbours each.
        (["<pp2>"], 24),
        (["<pp2>", "<pp4>", "<tp2,pp2>"], 48 + 12 + 18),
    ],
)
def test_stages_add_their_groups_and_their_neighbours(schemes: list[str], mib: int) -> None:
    exchange = communicator_bytes(of("<1>"), NODE, Channels(8, 16))
    assert communicator_bytes(of(*schemes), NODE, Channels(8, 16)) - exchange == 16 * mib * MIB


def test_peers_of_other_nodes_share_their_buffers() -> None:
    alone = communicator_bytes(of("<1>"), NODE, Channels(8, 16))
    # The exchange between nodes, and WORLD.
    assert communicator_bytes(of("<1>"), NODES, Channels(8, 16)) - alone == (8 + 16) * 4 * MIB
    few, many = (
        communicator_bytes(of("<1>"), Cluster(gpus=gpus, gpus_per_node=8), Channels(8, 16))
        for gpus in (16, 1024)
    )
    assert few == many
    # The stages of a pipeline can be on any node, which WORLD reaches in any case.
    assert communicator_bytes(of("<pp2>"), NODES, Channels(8, 16)) - few == 16 * 24 * MIB


def test_four_schemes_of_a_node_take_less_than_a_third_of_what_all_channels_take() -> None:
    schemes = of("<1>", "<tp2>", "<tp4>", "<tp8>")
    capped, whole = (
        communicator_bytes(schemes, NODE, channels) for channels in (Channels(4, 8), Channels(32, 32))
    )
    assert whole > 8e9
    assert capped < whole / 3


@pytest.mark.parametrize(
    ("schemes", "buffers"), [(["<1>", "<cp2>"], 0), (["<tp2>", "<tp2,pp2>", "<tp8>", "<tp16>", "<1>"], 2)]
)
def test_each_tensor_degree_of_a_node_has_a_symmetric_buffer(schemes: list[str], buffers: int) -> None:
    with_buffers, without = (
        communicator_bytes(of(*schemes), NODES, Channels(8, 16, has_buffers)) for has_buffers in (True, False)
    )
    assert with_buffers - without == buffers * 66 * MIB
    # A measurement of any scheme has them all.
    later = communicator_bytes(of(*schemes), NODES, Channels(8, 16, True), later=True)
    assert later == communicator_bytes(of(*schemes), NODES, Channels(8, 16), later=True)
    train = TrainConfig(steps=1, symmetric_memory=True)
    assert Channels.of_run(train).has_buffers


def device_of(multiprocessors: int) -> Callable[[Any], Any]:
    return lambda _device: SimpleNamespace(multi_processor_count=multiprocessors)


def test_kernels_that_wait_at_once_must_leave_the_device_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", device_of(132))
    every = of("<tp2,cp2,pp2>")
    # 2 x 8 + 3 x 16 = 64 of 96.
    check_kernels_in_flight(every, NODES, Channels(8, 16), CUDA)
    check_kernels_in_flight(every, NODES, Channels(16, 16), CUDA)
    with refused("config_value", "exchange_channels = 32", "2 x 32 + 3 x 16 = 112", "96 of", "132"):
        check_kernels_in_flight(every, NODES, Channels(32, 16), CUDA)
    # One node has one exchange at a time, and a scheme without stages has no messages.
    check_kernels_in_flight(of("<1>", "<tp2>"), NODE, Channels(32, 32), CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_properties", device_of(66))
    with refused("config_value", "2 x 8 + 3 x 16 = 64", "48 of"):
        check_kernels_in_flight(every, NODES, Channels(8, 16), CUDA)


def test_the_environment_sets_the_channels_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    train = TrainConfig(steps=1, exchange_channels=4)
    assert Channels.of_run(train) == Channels(4, 16)
    monkeypatch.setenv("NCCL_MAX_CTAS", "2")
    assert Channels.of_run(train) == Channels(2, 2)
    # NCCL ignores a limit that is no positive number.
    monkeypatch.setenv("NCCL_MAX_CTAS", "-1")
    assert Channels.of_run(train) == Channels(4, 16)


@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch was built without NCCL")
def test_each_communicator_gets_options_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "new_group", lambda _ranks, **settings: made.append(settings["pg_options"]))
    ProcessGroups(TIMEOUT, "nccl", None, lambda: nccl_options(4, TIMEOUT)).ensure([[0, 1], [2, 3]])
    assert [one.config.max_ctas for one in made] == [4, 4]
    assert not made[0].is_high_priority_stream
    assert made[0]._timeout == TIMEOUT
    # Torch writes into them.
    assert made[0] is not made[1]


def test_the_share_of_waiting_multiprocessors_is_that_of_an_h100() -> None:
    assert int(132 * communicators._SHARE) == 96
