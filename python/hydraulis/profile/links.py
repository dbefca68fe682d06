"""Measures latency and rate of communication between ranks, by operation and number of ranks.

A time is the wall time of the slowest rank, in the median over several repetitions: all ranks wait for an
exchange, even if another process uses a rank's core meanwhile.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.parallel.groups import ProcessGroups
from hydraulis.planner.profile_document import LinkMeasurement
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.ranks.host_wait import wait_for_device

SMALL_ELEMENTS = 256
LARGE_ELEMENTS = 1 << 20
REPETITIONS = 7


def measure_links(groups: ProcessGroups, device: torch.device) -> list[LinkMeasurement]:
    """Measure every operation of `exchanges_to_measure`. Collective.

    Every exchange runs in a group that is destroyed at the end: the connections of NCCL's groups would keep
    memory that no profile counts.

    Args:
        groups: Process groups of the run, whose settings the measured groups have.
        device: Device of this rank's buffers.

    Returns:
        The links, equal on every rank; empty for a single rank.
    """
    exchanges = exchanges_to_measure(dist.get_world_size(), ranks_per_node())
    measured = groups.empty()
    measured.ensure(range(ranks) for _, ranks in exchanges)
    links = []
    for operation, ranks in exchanges:
        group = measured.get(range(ranks)) if dist.get_rank() < ranks else None
        if operation == "send":
            links.append(_link(operation, ranks, 1, partial(_send, group, ranks // 2), device))
        else:
            links.append(_link(operation, ranks, ranks, partial(_all_to_all, group), device))
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
    operation: str, ranks: int, parts: int, exchange: Callable[[Tensor], None], device: torch.device
) -> LinkMeasurement:
    """Time an exchange of small and large buffers, each sent in `parts` equal parts."""
    few, many = SMALL_ELEMENTS * parts, LARGE_ELEMENTS // parts * parts
    small_ms, large_ms = (
        _median_ms(exchange, torch.zeros(elements, device=device), takes_part=dist.get_rank() < ranks)
        for elements in (few, many)
    )
    # If ranks share cores, a large exchange can take less time than a small one.
    more_ms = max(large_ms - small_ms, 0.01 * large_ms)
    return LinkMeasurement(
        operation=operation,
        ranks=ranks,
        latency_ms=small_ms,
        gigabytes_per_s=4 * (many - few) / more_ms / 1e6,
    )


def _median_ms(exchange: Callable[[Tensor], None], buffer: Tensor, *, takes_part: bool) -> float:
    times = []
    for repetition in range(REPETITIONS + 1):
        host.barrier()
        start = time.perf_counter()
        if takes_part:
            exchange(buffer)
            # On CUDA the host has only queued the exchange. A small one takes less than a pause.
            wait_for_device(buffer.device, poll_s=0.0)
        elapsed = torch.tensor(1e3 * (time.perf_counter() - start) if takes_part else 0.0)
        host.all_reduce(elapsed, dist.ReduceOp.MAX)
        # The first repetition opens the connections.
        if repetition:
            times.append(elapsed.item())
    return statistics.median(times)


def _all_to_all(group: dist.ProcessGroup | None, buffer: Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(buffer), buffer, group=group)


def _send(group: dist.ProcessGroup | None, half: int, buffer: Tensor) -> None:
    rank = dist.get_rank()
    # Batched like the exchange of pipeline stages: NCCL would open another connection for a single send.
    operation, peer = (dist.isend, rank + half) if rank < half else (dist.irecv, rank - half)
    for work in dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer, group)]):
        work.wait()
