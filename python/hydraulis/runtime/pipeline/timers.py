"""Timers of one rank: each computation of a step, and the time that goes to communication alone.

On the CPU a computation's time is the CPU time of its thread, without the transfers that the thread runs in
between. Waiting for another rank takes no CPU time, so times hold when ranks share cores; the threads on
which gloo exchanges with tensor and context ranks are not included (docs/cost-model.md, "The clock"). On CUDA
the host runs ahead of the device, so times are those between events in the stream of computation. They
exclude the computation's waits for transfers, and include its waits for tensor and context ranks.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch

from hydraulis.runtime.ranks.host_wait import wait_until


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one rank in one step.

    Attributes:
        computed_ms: Time of each computation, in running order.
        transferred_ms: Time in which the rank only transferred: on the CPU the wall time of waiting, packing
            and adding up; on CUDA the time that computation waited for transfers.
        crossing_ms: Time from the start to the end of the exchanges between nodes of the parameter gather, by
            the wall clock or on the side stream.
    """

    computed_ms: list[float] = field(default_factory=list)
    transferred_ms: float = 0.0
    crossing_ms: float = 0.0


class StepTimers(ABC):
    """Takes the times of one step after another."""

    @abstractmethod
    def computing(self) -> AbstractContextManager[None]:
        """Time a computation while the context lasts."""

    @abstractmethod
    def transferring(self) -> AbstractContextManager[None]:
        """Time transfers while the context lasts."""

    @abstractmethod
    def crossing(self) -> AbstractContextManager[None]:
        """Time exchanges between nodes while the context lasts; on CUDA it ends in the current stream."""

    @abstractmethod
    def read(self) -> StepTimes:
        """Return the times since the last reading and reset the timers; on CUDA this waits for the device."""


def step_timers(device: torch.device) -> StepTimers:
    """Create the timers of a rank that computes on this device."""
    return CudaTimers() if device.type == "cuda" else CpuTimers()


class CpuTimers(StepTimers):
    """CPU time of computations, and wall time of transfers."""

    def __init__(self) -> None:
        self._computed_ms: list[float] = []
        self._transferred_s = 0.0
        # CPU time of the thread for packing and adding up.
        self._transferring_s = 0.0
        self._crossing_s = 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Time a computation by the CPU time of its thread, without transfers in between."""
        start, transferring_s = time.thread_time(), self._transferring_s
        yield
        took_s = time.thread_time() - start - (self._transferring_s - transferring_s)
        self._computed_ms.append(1e3 * took_s)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Time transfers by the wall clock."""
        start, thread_start = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self._transferred_s += time.perf_counter() - start
            self._transferring_s += time.thread_time() - thread_start

    @contextmanager
    def crossing(self) -> Iterator[None]:
        """Time exchanges between nodes by the wall clock."""
        start = time.perf_counter()
        yield
        self._crossing_s += time.perf_counter() - start

    def read(self) -> StepTimes:
        """Return the times since the last reading and reset the timers."""
        times = StepTimes(self._computed_ms, 1e3 * self._transferred_s, 1e3 * self._crossing_s)
        self._computed_ms, self._transferred_s, self._crossing_s = [], 0.0, 0.0
        return times


class CudaTimers(StepTimers):
    """Pairs of events in the stream of computation, read once the device has passed them."""

    def __init__(self) -> None:
        # A computation, and the number of transfers before it and after it.
        self._computed: list[tuple[EventPair, int, int]] = []
        self._transferred: list[EventPair] = []
        self._crossed: list[EventPair] = []

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Time a computation between two events on the device."""
        before, pair = len(self._transferred), EventPair()
        yield
        pair.end()
        self._computed.append((pair, before, len(self._transferred)))

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Time the waits of the stream of computation."""
        pair = EventPair()
        try:
            yield
        finally:
            pair.end()
            self._transferred.append(pair)

    @contextmanager
    def crossing(self) -> Iterator[None]:
        """Time exchanges between two events in the current stream, which waits for them."""
        pair = EventPair()
        yield
        pair.end()
        self._crossed.append(pair)

    def read(self) -> StepTimes:
        """Wait for the device, return the times since the last reading, and reset the timers."""
        transferred = [pair.ms() for pair in self._transferred]
        times = StepTimes(
            [pair.ms() - sum(transferred[first:last]) for pair, first, last in self._computed],
            sum(transferred),
            sum(pair.ms() for pair in self._crossed),
        )
        self._computed, self._transferred, self._crossed = [], [], []
        return times


class EventPair:
    """Two events in the current stream, the first of which is recorded at once."""

    def __init__(self) -> None:
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._start.record()

    def end(self) -> None:
        """Record the second event."""
        self._end.record()

    def ms(self) -> float:
        """Wait for the second event, and return the time between both; see `wait_until` for errors."""
        wait_until(self._end.query)
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))
