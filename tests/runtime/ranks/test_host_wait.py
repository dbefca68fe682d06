"""Waits of the host for its device: a fake device that never gets there, and what ends the wait."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from helpers import lacks
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks import host_wait
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.host_wait import wait_for_device, wait_until
from hydraulis.runtime.ranks.liveness import heartbeat as heartbeat_module
from hydraulis.runtime.ranks.liveness.check import LivenessCheck, Process
from hydraulis.runtime.ranks.liveness.heartbeat import Heartbeat, activity_of, set_current

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "_POLL_S", 0.01)
    monkeypatch.setattr(heartbeat_module, "_BEAT_S", 0.01)
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))


@pytest.fixture
def heartbeats() -> Iterator[tuple[Heartbeat, Heartbeat]]:
    """Start the threads of two ranks of this process; the first one is this process's own."""
    store = HashStore()
    made = [Heartbeat(LivenessCheck(store, rank, 2, ()), rank, 2, 60.0) for rank in range(2)]
    for one in made:
        one.start()
    made[0].then = lambda: "resume run 7"
    set_current(made[0], store)
    yield made[0], made[1]
    heartbeat_module._current.clear()
    for one in made:
        one.leave()


def never() -> bool:
    return False


class FakeEvent:
    """An event of CUDA that a device reaches after some questions."""

    questions = 3

    def __init__(self, **_: object) -> None:
        self.asked = 0

    def record(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        self.asked += 1
        return self.asked > self.questions

    def synchronize(self) -> None:
        assert self.query(), "the host was blocked"

    def elapsed_time(self, _: object) -> float:
        return 2.5


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: threading.Lock())


@pytest.mark.usefixtures("device", "heartbeats")
def test_the_host_asks_until_the_device_is_there() -> None:
    # A blocked call before that fails the assertion of the fake event.
    wait_for_device(CUDA)
    wait_for_device(CPU)


@pytest.mark.usefixtures("device", "heartbeats")
def test_the_times_of_a_step_are_read_without_blocking() -> None:
    from hydraulis.runtime.pipeline.timers import CudaTimers

    timers = CudaTimers()
    with timers.computing():
        pass
    assert timers.read().computed_ms == [2.5]


def test_without_a_heartbeat_the_caller_blocks() -> None:
    wait_until(never)


def lost_by(wait: Callable[[], None]) -> str:
    with pytest.raises(HydraulisError) as caught:
        wait()
    assert caught.value.code == "lost_rank"
    message = str(caught.value)
    # Only an error of NCCL is one of a connection.
    assert ("the connection to another rank broke" in message) == ("NCCL" in message)
    return message


def test_a_rank_that_fails_ends_the_waits_of_the_others(heartbeats: tuple[Heartbeat, Heartbeat]) -> None:
    own, other = heartbeats
    other.leave(failed=True, failure="error [out_of_device_memory]: too much")
    message = lost_by(lambda: wait_until(never))
    assert "rank 1 failed: error [out_of_device_memory]: too much" in message
    assert "train." not in message
    assert message.endswith("; resume run 7")
    # The report names it as ended.
    printed = own.find_lost(HydraulisError(message, code="lost_rank"))
    assert printed is not None
    assert str(printed).startswith(f"rank 1 ({Process.own().host}) ended: ")


def test_a_rank_that_all_ranks_fail_with_ends_no_wait(heartbeats: tuple[Heartbeat, Heartbeat]) -> None:
    heartbeats[1].leave(failed=True)
    asked: list[int] = []

    def after_a_while() -> bool:
        asked.append(1)
        return len(asked) > 50

    wait_until(after_a_while)


@pytest.mark.usefixtures("heartbeats")
def test_a_process_that_ends_without_a_word_ends_the_wait_of_the_rank_that_watches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Process, "state", lambda _: "ended")
    message = lost_by(lambda: wait_until(never))
    assert "the process of rank 1 ended: " in message
    assert "train." not in message


def test_a_process_that_left_is_not_lost(
    heartbeats: tuple[Heartbeat, Heartbeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats[1].leave()
    monkeypatch.setattr(Process, "state", lambda _: "ended")
    asked: list[int] = []

    def after_a_while() -> bool:
        asked.append(1)
        return len(asked) > 50

    wait_until(after_a_while)


def test_a_wait_ends_at_its_time(heartbeats: tuple[Heartbeat, Heartbeat]) -> None:
    heartbeats[0].timeout_s = 0.02
    message = lost_by(lambda: wait_until(never))
    assert "train.timeout_s = 0.02 s" in message
    assert "needs a longer train.timeout_s" in message
    assert message.endswith("; resume run 7")


@pytest.mark.usefixtures("heartbeats")
def test_a_measured_wait_asks_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(_: float) -> None:
        pytest.fail("the wait took longer than the device")

    monkeypatch.setattr(host_wait, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    answers = iter([False, False, True])
    wait_until(lambda: next(answers), poll_s=0.0)


def test_a_rank_that_torchrun_ends_reports_before_it_is_killed(
    heartbeats: tuple[Heartbeat, Heartbeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_wait, "_last_s", lambda: 0.02)
    heartbeats[0].is_ending = lambda: True
    message = lost_by(lambda: wait_until(never))
    assert lacks(message, "to end", "0.02 s", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT") == []
    assert "train." not in message
    # A device that gets there ends the step as usual.
    monkeypatch.setattr(host_wait, "_last_s", lambda: 60.0)
    asked: list[int] = []

    def soon() -> bool:
        asked.append(1)
        return len(asked) > 3

    wait_until(soon)


@pytest.mark.parametrize(
    ("setting", "seconds"), [(None, 25.0), ("100", 95.0), ("3", 1.0), ("a minute", 25.0)]
)
def test_a_rank_has_the_time_that_torchrun_grants(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, seconds: float
) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if setting is not None:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", setting)
    assert host_wait._last_s() == seconds


@pytest.mark.usefixtures("heartbeats")
def test_an_error_of_nccl_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wait, "_ERROR_S", 0.01)
    errors = iter([None, None, "COMM_ERROR"])
    monkeypatch.setattr(host_wait, "find_nccl_error", lambda: next(errors))
    message = lost_by(lambda: wait_until(never))
    assert "NCCL reported COMM_ERROR" in message
    assert message.endswith("; resume run 7")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_loss_ends_the_wait_for_a_device_that_still_works(
    heartbeats: tuple[Heartbeat, Heartbeat],
) -> None:
    torch.cuda._sleep(20_000_000_000)
    heartbeats[1].leave(failed=True, failure="MemoryError")
    assert "rank 1 failed: MemoryError" in lost_by(lambda: wait_for_device(CUDA))


@pytest.mark.usefixtures("heartbeats")
def test_a_rank_in_such_a_wait_is_no_slow_rank() -> None:
    found: list[Any] = []

    def asked() -> bool:
        found.append(activity_of(threading.get_ident()))
        return True

    wait_until(asked)
    assert found == [None]
