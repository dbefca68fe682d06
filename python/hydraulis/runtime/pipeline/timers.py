"""What an iteration's time goes to on one rank: computations one by one, and transfers.

On the CPU a computation's time is CPU time of its thread, less what that spends on transfers in between.
Waiting for another rank takes none, so times hold when ranks share cores; what the threads take on which gloo
exchanges with the tensor and context ranks is not in it (docs/cost-model.md, "The clock"). On CUDA the host
runs ahead of the device, and events in the stream of computation say when the device came to them; what a
computation waited for transfers is left out of its time, what it waited for the tensor and context ranks that
it meets is not.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """The times of one rank in one iteration.

    Attributes:
        computed_ms: of each computation, in running order.
        transferred_ms: that was nothing but transfers: on the CPU on the wall, waiting, packing and adding up
            together; on CUDA what computation waited for them.
    """

    computed_ms: list[float] = field(default_factory=list)
    transferred_ms: float = 0.0


class IterationClock(ABC):
    """Takes the times of one iteration after another."""

    @abstractmethod
    def computing(self) -> AbstractContextManager[None]:
        """Time a computation for as long as the context lasts."""

    @abstractmethod
    def transferring(self) -> AbstractContextManager[None]:
        """Time what is nothing but transfers for as long as the context lasts."""

    @abstractmethod
    def read(self) -> IterationTimes:
        """Give the times since the last reading, and forget them; on CUDA it waits for the device."""


def iteration_clock(device: torch.device) -> IterationClock:
    """Make the clock of a rank that computes on this device.

    Args:
        device: of the rank.
    """
    return CudaClock() if device.type == "cuda" else CpuClock()


class CpuClock(IterationClock):
    """CPU time of computations, and the wall's time of transfers."""

    def __init__(self) -> None:
        self._computed_ms: list[float] = []
        self._transferred_s = 0.0
        # Of the thread's CPU time: packing and adding up.
        self._transferring_s = 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Time a computation by CPU time of its thread, transfers in between left out."""
        start, transferring_s = time.thread_time(), self._transferring_s
        yield
        took_s = time.thread_time() - start - (self._transferring_s - transferring_s)
        self._computed_ms.append(1e3 * took_s)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Time transfers on the wall."""
        start, thread_start = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self._transferred_s += time.perf_counter() - start
            self._transferring_s += time.thread_time() - thread_start

    def read(self) -> IterationTimes:
        """Give the times since the last reading, and forget them."""
        times = IterationTimes(self._computed_ms, 1e3 * self._transferred_s)
        self._computed_ms, self._transferred_s = [], 0.0
        return times


class CudaClock(IterationClock):
    """Pairs of events in the stream of computation, as far apart as the device says once it is past them."""

    def __init__(self) -> None:
        # A computation, and how many transfers there were before it and after it.
        self._computed: list[tuple[_Lap, int, int]] = []
        self._transferred: list[_Lap] = []

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Time a computation by what the device does between its ends."""
        before, lap = len(self._transferred), _Lap()
        yield
        lap.end()
        self._computed.append((lap, before, len(self._transferred)))

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Time what the stream of computation waits in between."""
        lap = _Lap()
        try:
            yield
        finally:
            lap.end()
            self._transferred.append(lap)

    def read(self) -> IterationTimes:
        """Wait for the device, give the times since the last reading, and forget them."""
        transferred = [lap.ms() for lap in self._transferred]
        times = IterationTimes(
            [lap.ms() - sum(transferred[first:last]) for lap, first, last in self._computed],
            sum(transferred),
        )
        self._computed, self._transferred = [], []
        return times


class _Lap:
    """Two events in the current stream."""

    def __init__(self) -> None:
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._start.record()

    def end(self) -> None:
        self._end.record()

    def ms(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))
