"""Measurements of links: their sizes and clocks, and their end when another rank is lost."""

from types import SimpleNamespace

import pytest
import torch

from devices import one_rank
from helpers import refused
from hydraulis.errors import HydraulisError
from hydraulis.profile import links
from hydraulis.profile.links import EXCHANGES, REPETITIONS, LinkBytes, clock_of, link_bytes
from hydraulis.runtime.memory.device_memory import DeviceMemory
from hydraulis.runtime.ranks import host, host_wait
from ranks import run_ranks
from runtime.links_workers import Report, measured_links

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MIB = 1 << 20


class WaitingEvent:
    """An event that the device never reaches, because its exchange waits for a lost rank."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pytest.fail("the host was blocked")


def test_the_loss_of_a_rank_ends_a_measured_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = HydraulisError("rank 1 ended", code="lost_rank")
    monkeypatch.setattr(torch.cuda, "Event", WaitingEvent)
    monkeypatch.setattr(host_wait, "current", lambda: SimpleNamespace(lost=lost))
    monkeypatch.setattr(host, "barrier", lambda: None)
    with refused("lost_rank", "rank 1 ended"):
        links._median_ms(lambda: None, clock_of(CUDA))


def test_the_clock_of_cuda_is_the_devices_and_includes_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        """An event at a time of the device."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: "Event") -> float:
            return end.at - self.at

    def work() -> None:
        now[0] += 12.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert clock_of(CUDA)(work) == 12.5
    assert 0.0 <= clock_of(CPU)(work) < 12.5


# The whole buffers of a send, and of an all-to-all of two ranks, which both get a small message.
SIZES = LinkBytes(small=1 << 10, large=(1 << 18) + 4)
SEND, TO_ALL = (1 << 10, (1 << 18) + 4), (1 << 11, 1 << 18)


def repetitions(median_ms: float) -> list[float]:
    """Return the times of several exchanges: the first repetition is left out, and one is far too long."""
    return [1e6, *[EXCHANGES * median_ms] * (REPETITIONS - 1), 1e5]


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    """Measure the two links of two ranks."""
    times = [ms for median_ms in (1.0, 3.0, 2.0, 5.0) for ms in repetitions(median_ms)]
    return run_ranks(2, measured_links, SIZES, times)


def test_each_repetition_times_several_exchanges_of_the_sizes_that_were_asked_for(
    reports: list[Report],
) -> None:
    for report in reports:
        expected = [*SEND, *TO_ALL]
        times = REPETITIONS + 1
        assert report.timed == [[nbytes] * EXCHANGES for nbytes in expected for _ in range(times)]
        # One exchange before each lets the ranks go on together.
        assert report.num_sent == len(expected) * times * (EXCHANGES + 1)


def test_the_rate_is_the_bytes_over_the_time_of_one_exchange(reports: list[Report]) -> None:
    for report in reports:
        send, to_all = report.links
        assert (send.operation, send.ranks, to_all.operation, to_all.ranks) == ("send", 2, "all_to_all", 2)
        assert (send.latency_ms, to_all.latency_ms) == pytest.approx((1.0, 2.0))
        assert send.gigabytes_per_s == pytest.approx((SEND[1] - SEND[0]) / 2.0 / 1e6)
        assert to_all.gigabytes_per_s == pytest.approx((TO_ALL[1] - TO_ALL[0]) / 3.0 / 1e6)


@pytest.mark.parametrize(
    ("free", "large"),
    [(80_000, 256), (1_024, 256), (1_023, 128), (512, 128), (300, 64), (16, 4), (3, 4), (0, 4)],
)
def test_two_buffers_take_at_most_half_of_the_memory_that_is_left(
    monkeypatch: pytest.MonkeyPatch, free: int, large: int
) -> None:
    # What the allocator has reserved without a tensor is left too.
    memory = DeviceMemory(100_000 * MIB, (90_000 - free) * MIB, 12_000 * MIB, 10_000 * MIB, 0, 0)
    monkeypatch.setattr(links, "DeviceMemory", SimpleNamespace(read=lambda _: memory))
    with one_rank("cpu"):
        assert link_bytes(CUDA) == LinkBytes(1 << 10, large * MIB)
        assert link_bytes(CPU) == LinkBytes(1 << 10, 4 * MIB)
