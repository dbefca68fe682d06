"""Timers of computations and of transfers."""

import time
from typing import Any

import pytest
import torch

from hydraulis.runtime.pipeline.timers import CudaTimers, StepTimes, step_timers
from hydraulis.runtime.ranks.device import CPU


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_on_the_cpu_waiting_is_no_computation_and_transfers_take_wall_time() -> None:
    clock = step_timers(CPU)
    with clock.computing():
        busy(0.02)
    with clock.computing(), clock.transferring():
        time.sleep(0.05)
        busy(0.05)
    with clock.crossing():
        time.sleep(0.03)
    with clock.computing():
        busy(0.02)
    times = clock.read()
    assert times.computed_ms[0] >= 20
    assert times.computed_ms[1] < 20
    assert times.computed_ms[2] >= 20
    assert times.transferred_ms >= 100
    assert times.crossing_ms >= 30
    assert clock.read() == StepTimes()


class FakeEvent:
    """An event of a stream in which each record takes a millisecond more than the one before."""

    records = 0.0

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        FakeEvent.records += 1.0
        self.at = FakeEvent.records * (FakeEvent.records + 1) / 2

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        assert self.at > 0

    def elapsed_time(self, end: "FakeEvent") -> float:
        return end.at - self.at


def test_on_cuda_a_computation_excludes_its_wait_for_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = CudaTimers()
    # The records lie at 1, 3, 6, 10, ...
    with clock.transferring():  # 1 to 3
        pass
    with clock.computing():  # 6 to 36
        with clock.transferring():  # 10 to 15
            pass
        with clock.transferring():  # 21 to 28
            pass
    with clock.computing():
        pass
    with clock.crossing():  # 66 to 78
        pass
    with clock.crossing():  # 91 to 105
        pass
    times = clock.read()
    # 6 to 36 without 10 to 15 and 21 to 28; 45 to 55.
    assert times == StepTimes([30.0 - 5.0 - 7.0, 10.0], 2.0 + 5.0 + 7.0, 12.0 + 14.0)
    assert clock.read() == StepTimes()
