"""Streams beside computation and points in them, without a device: which ones are asked for, and whose."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import SideStream, StreamEvent
from hydraulis.runtime.redistribute import exchange_groups
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup

CUDA = torch.device("cuda", 1)
TIMEOUT = timedelta(seconds=7)


def test_what_is_beside_computation_takes_no_stream_that_a_stages_group_may_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[torch.device, int]] = []

    def stream(device: torch.device, priority: int = 0) -> None:
        asked.append((device, priority))

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    SideStream(CUDA)
    assert asked == [(CUDA, -1)]


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_neither_do_the_groups_by_which_buckets_travel(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    if device.type == "cuda" and not dist.is_nccl_available():
        pytest.skip("torch was built without NCCL")
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "new_group", lambda _ranks, **settings: made.append(settings))
    ExchangeGroup.create([[0, 1], [2], [3, 4]], TIMEOUT, device)
    options = [settings["pg_options"] for settings in made]
    assert len(options) == 2
    if device == CPU:
        assert options == [None, None]
        return
    assert [settings["backend"] for settings in made] == ["nccl", "nccl"]
    assert all(one.is_high_priority_stream and one._timeout == TIMEOUT for one in options)
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


def test_who_waits_for_a_landmark_from_another_thread_stands_on_its_device(
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


@pytest.mark.parametrize(("device", "connected"), [(CPU, []), (CUDA, [[2, 3]])])
def test_ranks_that_exchange_buckets_on_devices_are_connected_when_their_group_is_made(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, connected: list[list[int]]
) -> None:
    found: list[object] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "new_group", lambda ranks, **_: ranks)
    monkeypatch.setattr(exchange_groups, "_options", lambda *_: None)
    monkeypatch.setattr(exchange_groups, "connect_group", lambda group, _: found.append(group))
    ExchangeGroup.create([[0, 1], [2, 3]], TIMEOUT, device)
    ExchangeGroup.create([[0], [1], [2], [3]], TIMEOUT, device)
    assert found == connected
