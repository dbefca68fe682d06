"""Measures latency and rate of communication between ranks, by operation and number of ranks.

A time is that of the slowest rank, in the median over several repetitions: all ranks wait for an exchange,
even if another process uses a rank's core meanwhile. In a repetition the ranks exchange once, so that they go
on together, and then several times without a pause. These are timed, on CUDA between two events of the
device, because a host that launches an exchange and waits for it adds its own time; on the CPU by the clock
of the host.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.parallel.groups import ProcessGroups
from hydraulis.planner.profile_document import LinkMeasurement
from hydraulis.runtime.memory.device_memory import DeviceMemory
from hydraulis.runtime.pipeline.timers import EventPair
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.distributed import ranks_per_node

REPETITIONS = 7
EXCHANGES = 4
"""Exchanges that a repetition times together."""
_SMALL_BYTES = 1 << 10
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 256 << 20

Clock = Callable[[Callable[[], None]], float]
"""A function that calls another one, and returns the milliseconds of the work that this has launched."""


class LinkBytes(NamedTuple):
    """Bytes of the buffers that ranks exchange.

    Attributes:
        small: Bytes for each rank that receives, whose time is the latency.
        large: Bytes of a whole buffer. Those that it has more than the small one, and the time that they
            take more, give the rate.
    """

    small: int
    large: int


def link_bytes(device: torch.device) -> LinkBytes:
    """Return the bytes to exchange between devices of this kind. Collective on CUDA.

    The large buffer has 4 MiB on the CPU. On CUDA a message of that size takes less time than it takes to
    start, so the buffer has 256 MiB, or the largest smaller power of two, from 4 MiB on, of which two buffers
    take at most half of the free memory of each device: connections of the measured groups need the rest.

    Args:
        device: Device of this rank's buffers.
    """
    if device.type != "cuda":
        return LinkBytes(_SMALL_BYTES, _LEAST_BYTES)
    memory = DeviceMemory.read(device)
    # The allocator's reserve counts as free: it returns or reuses that memory.
    free = host.least(memory.total - memory.outside - memory.allocated)
    fitting = 1 << max(1, free // 4).bit_length() - 1
    return LinkBytes(_SMALL_BYTES, min(max(fitting, _LEAST_BYTES), _MOST_BYTES))


def clock_of(device: torch.device) -> Clock:
    """Return the clock of exchanges between devices of this kind."""
    return _device_ms if device.type == "cuda" else _host_ms


def measure_links(
    groups: ProcessGroups,
    device: torch.device,
    sizes: LinkBytes | None = None,
    clock: Clock | None = None,
) -> list[LinkMeasurement]:
    """Measure every operation of `exchanges_to_measure`. Collective.

    Every exchange runs in a group that is destroyed at the end: the connections of NCCL's groups would keep
    memory that no profile counts.

    Args:
        groups: Process groups of the run, whose settings the measured groups have.
        device: Device of this rank's buffers.
        sizes: Bytes of the buffers, the same on every rank; `link_bytes` if left out.
        clock: Clock of the exchanges; `clock_of` if left out.

    Returns:
        The links, equal on every rank; empty for a single rank.
    """
    exchanges = exchanges_to_measure(dist.get_world_size(), ranks_per_node())
    sizes, clock = sizes or link_bytes(device), clock or clock_of(device)
    measured = groups.empty()
    measured.ensure(range(ranks) for _, ranks in exchanges)
    links = []
    for operation, ranks in exchanges:
        group = measured.get(range(ranks)) if dist.get_rank() < ranks else None
        prepare = partial(_exchange, operation, ranks, group, device)
        links.append(_link(operation, ranks, prepare, sizes, clock))
    measured.destroy()
    return links


def exchanges_to_measure(world: int, ranks_per_node: int) -> list[tuple[str, int]]:
    """List the operations to measure with their numbers of ranks: 2, 4, 8 and so on, and all ranks.

    A send needs an even number of ranks. Sends between two whole nodes are measured for any number of ranks
    per node, because all of them cross the nodes.

    Args:
        world: Number of ranks.
        ranks_per_node: Ranks of a node.
    """
    sizes = {min(2**doublings, world) for doublings in range(1, world.bit_length() + 1)} - {1}
    sends = {size for size in sizes | {2 * ranks_per_node} if size % 2 == 0 and size <= world}
    exchanges = [("send", size) for size in sends] + [("all_to_all", size) for size in sizes]
    return sorted(exchanges, key=lambda exchange: (exchange[1], exchange[0] != "send"))


def _link(
    operation: str,
    ranks: int,
    prepare: Callable[[int], Callable[[], None] | None],
    sizes: LinkBytes,
    clock: Clock,
) -> LinkMeasurement:
    """Time exchanges of small and large buffers.

    Args:
        operation: Name of the exchange.
        ranks: Number of ranks that exchange.
        prepare: Function from the bytes of a buffer to its exchange, or to None on a rank without a part.
        sizes: Bytes of the buffers.
        clock: Clock of the exchanges.
    """
    parts = 1 if operation == "send" else ranks
    element = torch.float32.itemsize
    few, many = sizes.small * parts, sizes.large // (element * parts) * element * parts
    small_ms, large_ms = (_median_ms(prepare(nbytes), clock) for nbytes in (few, many))
    # If ranks share cores, a large exchange can take less time than a small one.
    more_ms = max(large_ms - small_ms, 0.01 * large_ms)
    return LinkMeasurement(
        operation=operation,
        ranks=ranks,
        latency_ms=small_ms,
        gigabytes_per_s=(many - few) / more_ms / 1e6,
    )


def _exchange(
    operation: str, ranks: int, group: dist.ProcessGroup | None, device: torch.device, nbytes: int
) -> Callable[[], None] | None:
    """Allocate the buffers of an exchange, and return it; None without a group, on other ranks."""
    if group is None:
        return None
    buffer = torch.zeros(nbytes // torch.float32.itemsize, device=device)
    if operation == "send":
        return partial(_send, group, ranks // 2, buffer)
    return partial(_all_to_all, group, buffer, torch.empty_like(buffer))


def _median_ms(exchange: Callable[[], None] | None, clock: Clock) -> float:
    times = []
    for repetition in range(REPETITIONS + 1):
        host.barrier()
        elapsed = host.largest(0.0 if exchange is None else _repetition_ms(exchange, clock))
        # The first repetition touches the memory.
        if repetition:
            times.append(elapsed)
    return statistics.median(times)


def _repetition_ms(exchange: Callable[[], None], clock: Clock) -> float:
    """Return the time of one exchange, after another one that lets the ranks go on together."""

    def several() -> None:
        for _ in range(EXCHANGES):
            exchange()

    exchange()
    return clock(several) / EXCHANGES


def _device_ms(work: Callable[[], None]) -> float:
    pair = EventPair()
    work()
    pair.end()
    return pair.ms()


def _host_ms(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def _all_to_all(group: dist.ProcessGroup, buffer: Tensor, received: Tensor) -> None:
    dist.all_to_all_single(received, buffer, group=group)


def _send(group: dist.ProcessGroup, half: int, buffer: Tensor) -> None:
    rank = dist.get_rank()
    # Batched like the exchange of pipeline stages: NCCL would open another connection for a single send.
    operation, peer = (dist.isend, rank + half) if rank < half else (dist.irecv, rank - half)
    for work in dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer, group)]):
        work.wait()
