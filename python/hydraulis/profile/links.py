"""How long exchanges between ranks take: latency and rate, by kind and by the number of ranks.

Times are of the wall clock, of the slowest rank, the median over several: an exchange is waited for, whoever
has the core meanwhile.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import CostProfile
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.ranks.streams import Landmark

SMALL_ELEMENTS = 256
LARGE_ELEMENTS = 1 << 20
REPETITIONS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """One kind of exchange among so many ranks, as the cost profile defines it.

    Attributes:
        operation: `send` (each of the first half of the ranks to the one in its place in the second half, as
            stages do) or `all_to_all` (as transfers are).
        ranks: that take part, the first ones.
        latency_ms: of the smallest exchange.
        gigabytes_per_s: of one rank's buffer, in 1e9 bytes.
    """

    operation: str
    ranks: int
    latency_ms: float
    gigabytes_per_s: float


def measure_links(groups: ProcessGroups, device: torch.device) -> list[LinkMeasurement]:
    """Measure the exchanges of `exchanges_to_measure`. Collective.

    Args:
        groups: where those of fewer ranks than all are made.
        device: of this rank, from and to whose memory is sent.

    Returns:
        The same on every rank; nothing where there is one rank alone.
    """
    exchanges = exchanges_to_measure(dist.get_world_size(), ranks_per_node())
    groups.ensure(range(ranks) for operation, ranks in exchanges if operation == "all_to_all")
    links = []
    for operation, ranks in exchanges:
        if operation == "send":
            links.append(_link(operation, ranks, 1, partial(_send, ranks // 2), device))
        else:
            group = groups.get(range(ranks)) if dist.get_rank() < ranks else None
            links.append(_link(operation, ranks, ranks, partial(_all_to_all, group), device))
    return links


def exchanges_to_measure(world: int, ranks_per_node: int) -> list[tuple[str, int]]:
    """Give the operations to measure and the ranks that take part, the first 2, 4, 8 and so on, and all.

    Messages need an even number of ranks. Those between two whole nodes are measured too, because all of
    them cross, whatever the ranks of a node.

    Args:
        world: all ranks.
        ranks_per_node: of them, those of a node.
    """
    sizes = {min(2**doublings, world) for doublings in range(1, world.bit_length() + 1)} - {1}
    sends = {size for size in sizes | {2 * ranks_per_node} if size % 2 == 0 and size <= world}
    exchanges = [("send", size) for size in sends] + [("all_to_all", size) for size in sizes]
    return sorted(exchanges, key=lambda exchange: (exchange[1], exchange[0] != "send"))


def with_links(profile: CostProfile, links: list[LinkMeasurement]) -> CostProfile:
    """Put measured links into a profile."""
    document = json.loads(profile.to_json())
    document["hardware"]["links"] = [asdict(link) for link in links]
    return CostProfile.from_json(json.dumps(document))


def _link(
    operation: str, ranks: int, parts: int, exchange: Callable[[Tensor], None], device: torch.device
) -> LinkMeasurement:
    """Time an exchange of buffers that are sent in so many parts."""
    few, many = SMALL_ELEMENTS * parts, LARGE_ELEMENTS // parts * parts
    small_ms, large_ms = (
        _median_ms(exchange, torch.zeros(elements, device=device), takes_part=dist.get_rank() < ranks)
        for elements in (few, many)
    )
    # On ranks that wait for each other's cores a large exchange may end before a small one.
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
        dist.barrier()
        start = time.perf_counter()
        if takes_part:
            exchange(buffer)
            # On CUDA the host has only queued it.
            Landmark(buffer.device).synchronize()
        elapsed = torch.tensor(1e3 * (time.perf_counter() - start) if takes_part else 0.0)
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
        # The first one opens connections.
        if repetition:
            times.append(elapsed.item())
    return statistics.median(times)


def _all_to_all(group: dist.ProcessGroup | None, buffer: Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(buffer), buffer, group=group)


def _send(half: int, buffer: Tensor) -> None:
    rank = dist.get_rank()
    # As stages exchange: a send by itself would have NCCL connect the two ranks once more.
    operation, peer = (dist.isend, rank + half) if rank < half else (dist.irecv, rank - half)
    for work in dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer)]):
        work.wait()
