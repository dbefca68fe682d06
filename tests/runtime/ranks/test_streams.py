"""Streams beside computation and points in them, without a device: which ones are asked for, and whose."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from helpers import refused
from hydraulis import Cluster, Scheme
from hydraulis.parallel.communicators import Channels
from hydraulis.runtime import worker as worker_module
from hydraulis.runtime.ranks import host, joining
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import SideStream, StreamEvent
from hydraulis.runtime.redistribute import exchange_groups
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup
from hydraulis.runtime.worker import Worker

CUDA = torch.device("cuda", 1)
TIMEOUT = timedelta(seconds=7)


def test_side_streams_have_their_own_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[torch.device, int]] = []

    def stream(device: torch.device, priority: int = 0) -> None:
        asked.append((device, priority))

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    SideStream(CUDA)
    assert asked == [(CUDA, -1)]


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_exchange_groups_have_their_own_priority(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    if device.type == "cuda" and not dist.is_nccl_available():
        pytest.skip("torch was built without NCCL")
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "new_group", lambda _ranks, **settings: made.append(settings))
    ExchangeGroup.create([[0, 1], [2], [3, 4]], TIMEOUT, device, channels=4)
    options = [settings["pg_options"] for settings in made]
    assert len(options) == 2
    if device == CPU:
        assert options == [None, None]
        return
    assert [settings["backend"] for settings in made] == ["nccl", "nccl"]
    assert all(one.is_high_priority_stream and one._timeout == TIMEOUT for one in options)
    assert all(one.config.max_ctas == 4 for one in options)
    # Torch writes into them.
    assert options[0] is not options[1]


class FakeEvent:
    """Remembers on which device those stood who waited for it."""

    stands_on = 0

    def __init__(self) -> None:
        self.waited_on: list[int] = []

    def record(self, _stream: object) -> None:
        pass

    def synchronize(self) -> None:
        self.waited_on.append(FakeEvent.stands_on)


def test_a_wait_for_an_event_of_another_thread_uses_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def standing(device: torch.device) -> Iterator[None]:
        FakeEvent.stands_on = device.index
        yield
        FakeEvent.stands_on = 0

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "device", standing)
    landmark = StreamEvent(CUDA)
    thread = Thread(target=landmark.synchronize)
    thread.start()
    thread.join()
    assert isinstance(landmark._event, FakeEvent)
    assert landmark._event.waited_on == [1]


@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch was built without NCCL")
def test_world_has_the_channels_of_messages_between_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)

    def make(backend: str, **settings: Any) -> None:
        made.append(settings | {"backend": backend})

    monkeypatch.setattr(dist, "init_process_group", make)
    nodes: list[int] = []
    monkeypatch.setattr(host, "connect", lambda ranks_per_node, _: nodes.append(ranks_per_node))
    store: Any = {"ranks_per_node": b"2"}
    joining._connect(store, 1, 2, TIMEOUT, CUDA, 4)
    joining._connect(store, 1, 2, TIMEOUT, CPU, 4)
    joining._connect(store, 3, 4, TIMEOUT, CUDA, 4)
    store["ranks_per_node"] = b"1"
    joining._connect(store, 1, 1, TIMEOUT, CUDA, 4)
    # Rank 0's number of ranks per node.
    assert nodes == [2, 2, 2, 1]
    backends = [one["backend"] for one in made]
    assert backends == ["cpu:gloo,cuda:nccl", "gloo", "cuda:nccl", "gloo"]
    made.pop(2)
    assert made[0]["pg_options"].config.max_ctas == 4
    assert made[0]["device_id"] == CUDA
    assert [one["pg_options"] for one in made[1:]] == [None, None]


@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch was built without NCCL")
def test_the_groups_of_stages_have_their_own_channels_and_must_fit_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schemes, cluster = [Scheme("<tp2,pp2>")], Cluster(gpus=4, gpus_per_node=4)
    worker = SimpleNamespace(device=CUDA, schemes=schemes, cluster=cluster, channels=Channels(4, 2))
    made: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "new_group", lambda _ranks, **settings: made.append(settings["pg_options"]))
    monkeypatch.setattr(worker_module, "on_every_rank", lambda make: make())
    properties = SimpleNamespace(multi_processor_count=11)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    groups = Worker._make_groups(worker, TIMEOUT)  # type: ignore[arg-type]
    monkeypatch.setattr(groups, "_connecting", None)
    groups.ensure([[0, 1]])
    assert [one.config.max_ctas for one in made] == [2]
    worker.channels = Channels(8, 2)
    with refused("config_value", "1 x 8 + 2 x 2 = 12", "8 of"):
        Worker._make_groups(worker, TIMEOUT)  # type: ignore[arg-type]


class FakeGroup(list[int]):
    """A group of these ranks, as rank 2 has it."""

    def rank(self) -> int:
        return self.index(2)


@pytest.mark.parametrize(("device", "connected"), [(CPU, []), (CUDA, [[2, 3]])])
def test_ranks_that_exchange_buckets_on_devices_are_connected_when_their_group_is_made(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, connected: list[list[int]]
) -> None:
    found: list[object] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "new_group", lambda ranks, **_: FakeGroup(ranks))
    monkeypatch.setattr(exchange_groups, "_options", lambda *_: None)
    monkeypatch.setattr(exchange_groups, "connect_group", lambda group, _: found.append(group))
    ExchangeGroup.create([[0, 1], [2, 3]], TIMEOUT, device, channels=4)
    ExchangeGroup.create([[0], [1], [2], [3]], TIMEOUT, device, channels=4)
    assert found == connected
