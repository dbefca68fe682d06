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
from hydraulis.runtime.side_stream import Landmark

SMALL_ELEMENTS = 256
LARGE_ELEMENTS = 1 << 20
REPETITIONS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """One kind of exchange among so many ranks, as the cost profile defines it.

    Attributes:
        operation: `send` (between two neighbours), `all_reduce` or `all_to_all`.
        ranks: that take part.
        latency_ms: of the smallest exchange.
        gigabytes_per_s: of one rank's buffer, in 1e9 bytes.
    """

    operation: str
    ranks: int
    latency_ms: float
    gigabytes_per_s: float


def measure_links(groups: ProcessGroups, device: torch.device) -> list[LinkMeasurement]:
    """Measure exchanges among the first 2, 4, 8 ranks and so on, and among all. Collective.

    Args:
        groups: where those of fewer ranks than all are made.
        device: of this rank, from and to whose memory is sent.

    Returns:
        The same on every rank; nothing where there is one rank alone.
    """
    world = dist.get_world_size()
    sizes = sorted({min(2**doublings, world) for doublings in range(1, world.bit_length() + 1)} - {1})
    groups.ensure(range(size) for size in sizes)
    links = []
    for size in sizes:
        group = groups.get(range(size)) if dist.get_rank() < size else None
        links += [_link("all_reduce", size, partial(_all_reduce, group), device)]
        links += [_link("all_to_all", size, partial(_all_to_all, group), device)]
    if world > 1:
        links.insert(0, _link("send", 2, _send, device))
    return links


def with_links(profile: CostProfile, links: list[LinkMeasurement]) -> CostProfile:
    """Put measured links into a profile."""
    document = json.loads(profile.to_json())
    document["hardware"]["links"] = [asdict(link) for link in links]
    return CostProfile.from_json(json.dumps(document))


def _link(
    operation: str, ranks: int, exchange: Callable[[Tensor], None], device: torch.device
) -> LinkMeasurement:
    small_ms, large_ms = (
        _median_ms(exchange, torch.zeros(elements, device=device), takes_part=dist.get_rank() < ranks)
        for elements in (SMALL_ELEMENTS * ranks, LARGE_ELEMENTS // ranks * ranks)
    )
    more_bytes = 4 * (LARGE_ELEMENTS // ranks - SMALL_ELEMENTS) * ranks
    # On ranks that wait for each other's cores a large exchange may end before a small one.
    more_ms = max(large_ms - small_ms, 0.01 * large_ms)
    return LinkMeasurement(
        operation=operation, ranks=ranks, latency_ms=small_ms, gigabytes_per_s=more_bytes / more_ms / 1e6
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


def _all_reduce(group: dist.ProcessGroup | None, buffer: Tensor) -> None:
    dist.all_reduce(buffer, group=group)


def _all_to_all(group: dist.ProcessGroup | None, buffer: Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(buffer), buffer, group=group)


def _send(buffer: Tensor) -> None:
    # As stages exchange: a send by itself would have NCCL connect the two ranks once more.
    operation, peer = (dist.isend, 1) if dist.get_rank() == 0 else (dist.irecv, 0)
    for work in dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer)]):
        work.wait()
