"""Ranks that never come, and signals while ranks join."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from devices import alone_under_torchrun
from helpers import lacks, refused
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.joining import LivenessSettings, _start_heartbeat, tell_refusal
from hydraulis.runtime.ranks.liveness import heartbeat
from hydraulis.runtime.ranks.liveness.check import LivenessCheck
from hydraulis.runtime.ranks.stop import StopRequest

REFUSING = """
from datetime import timedelta
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.joining import tell_refusal

tell_refusal(timedelta(seconds=60), HydraulisError("none is free", code="device_missing"))
"""


@pytest.fixture(autouse=True)
def _leave(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the thread of a rank that did not join."""
    monkeypatch.setattr(heartbeat, "_current", [])
    yield
    started = heartbeat.current()
    if started is not None:
        started.leave()


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe rank 0 of two ranks, the other of which never comes."""
    alone_under_torchrun(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (0.1,))


@pytest.mark.usefixtures("first_of_two")
def test_a_rank_that_never_comes_is_lost_and_named() -> None:
    with refused("lost_rank", "0.5 s") as caught:
        joined(timedelta(seconds=0.5)).__enter__()
    assert not dist.is_initialized()
    started = heartbeat.current()
    assert started is not None
    assert str(started.find_lost(caught.value)).startswith("rank 1 had not joined: ")


@pytest.mark.usefixtures("first_of_two")
@pytest.mark.parametrize("timeout_s", [0.1, 60])
def test_the_start_has_a_limit_of_its_own(timeout_s: float) -> None:
    with refused("lost_rank", "within 0.5 s", "need a longer train.start_timeout_s") as caught:
        joined(timedelta(seconds=timeout_s), liveness=LivenessSettings(start_timeout_s=0.5)).__enter__()
    assert lacks(str(caught.value), "connection", "train.timeout_s") == ["connection", "train.timeout_s"]


def test_without_rank_zero_the_others_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    alone_under_torchrun(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(HydraulisError) as caught:
        joined(timedelta(seconds=0.5)).__enter__()
    assert caught.value.code == "lost_rank"


@pytest.mark.usefixtures("first_of_two")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, HydraulisError), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_ends_a_rank_that_joins(number: int, raised: type[BaseException]) -> None:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    with StopRequest() as stop:
        timer.start()
        with pytest.raises(raised) as caught:
            joined(timedelta(seconds=60), liveness=LivenessSettings(stop=stop)).__enter__()
    timer.join()
    if isinstance(caught.value, HydraulisError):
        assert caught.value.code == "lost_rank"
        assert "terminated while the ranks joined: " in str(caught.value)
        assert "connection" not in str(caught.value)


@pytest.mark.parametrize(("silence_s", "limit_s"), [(60.0, 30.0), (3.0, 5.0)])
def test_a_late_answer_of_the_store_ends_no_signs_of_life(
    silence_s: float, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alone_under_torchrun(monkeypatch)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(served.port))
    beating = _start_heartbeat("attempt", 0, 1, LivenessSettings(silence_s=silence_s))
    # torch's types do not state this property.
    assert getattr(beating._check._store, "timeout") == timedelta(seconds=limit_s)  # noqa: B009
    beating.leave()


def test_ranks_that_refuse_the_run_tell_the_one_that_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    alone_under_torchrun(monkeypatch)
    monkeypatch.setattr(LivenessCheck.collect, "__defaults__", (1.0,))
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "2")
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_PORT", str(served.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    refusing = [
        subprocess.Popen(
            [sys.executable, "-c", REFUSING], env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    printed: list[HydraulisError | None] = []
    liveness = LivenessSettings(start_timeout_s=60, end=printed.append)
    # The others meet it, and never connect to it.
    with pytest.raises(HydraulisError):
        joined(timedelta(seconds=10), liveness=liveness).__enter__()
    assert [process.wait() for process in refusing] == [0, 0]
    # The ranks that refuse end: this one reports for all.
    (error,) = printed
    assert error is not None
    assert "error [device_missing]: none is free: its report has more" in str(error)


def test_a_rank_that_refuses_the_run_needs_the_others_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    alone_under_torchrun(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("lost_rank", "within 0.5 s"):
        tell_refusal(timedelta(seconds=0.5), HydraulisError("none is free", code="device_missing"))
