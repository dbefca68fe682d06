"""Host memory for layers that offload: the part of each rank, and the rate of its copies."""

import statistics
import time
from typing import TypedDict

import torch

from hydraulis.model.tensors import empty_on_host
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.ranks.streams import SideStream, StreamEvent
from hydraulis.runtime.recovery.host_room import NODE_SHARE
from hydraulis.runtime.recovery.node_memory import node_bytes
from hydraulis.runtime.worker import Worker

_COPIED_BYTES = 256 << 20
_REPETITIONS = 5


class HostFigures(TypedDict, total=False):
    """The host fields of `ModelMemory`."""

    host_memory_bytes: int
    host_gigabytes_per_s: float


def host_memory(worker: Worker, stated_bytes: int | None) -> HostFigures:
    """Return a rank's host memory and the rate of its copies; nothing if no scheme offloads. Collective.

    On the CPU there is no rate, because a copy is a part of computation.

    Args:
        worker: Worker of this rank.
        stated_bytes: Host memory of a rank; None for four fifths of the node's, divided by its ranks.
    """
    if worker.copies is None:
        return {}
    found = HostFigures(host_memory_bytes=stated_bytes or host.least(_own_bytes()))
    if worker.device.type == "cuda":
        found["host_gigabytes_per_s"] = copy_rate(worker.device)
    return found


def copy_rate(device: torch.device, nbytes: int = _COPIED_BYTES) -> float:
    """Measure the rate of copies to host memory and at the same time back, each way, in 1e9 bytes per second.

    All ranks copy at once, because those of a node may share its links. Collective.

    Args:
        device: Device of this rank.
        nbytes: Bytes of a copy.
    """
    is_pinned = device.type == "cuda"
    on_host = [empty_on_host([nbytes], torch.uint8, is_pinned=is_pinned) for _ in range(2)]
    on_device = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(2)]
    out, back = SideStream(device), SideStream(device)
    times = []
    for _ in range(_REPETITIONS + 1):
        host.barrier()
        start = time.perf_counter()
        with out.beside():
            on_host[0].copy_(on_device[0], non_blocking=True)
        with back.beside():
            on_device[1].copy_(on_host[1], non_blocking=True)
        out.join()
        back.join()
        StreamEvent(device).synchronize()
        times.append(time.perf_counter() - start)
    # The first repetition touches the memory. The slowest rank of each node keeps the others waiting.
    return nbytes / host.largest(statistics.median(times[1:])) / 1e9


def _own_bytes() -> int:
    return int(NODE_SHARE * node_bytes()) // ranks_per_node()
