"""Collectives in host memory on ranks of one machine: one group of all ranks, and two levels of nodes.

    python benches/host_collectives.py [--ranks N] [--ranks-per-node N] [--repetitions K]

Prints, for both, the sockets of gloo in rank 0, a leader, and in rank 1, and the median wall time of each
collective. All ranks share the machine's cores and its loopback, so times compare the two ways alone.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from hydraulis.runtime.ranks import host

_TIMEOUT = timedelta(seconds=120)
_PLAN_BYTES = 1 << 15


def measure(ranks_per_node: int, repetitions: int) -> dict[str, float]:
    """Measure this rank's connections and times. Collective."""
    host.connect(ranks_per_node, _TIMEOUT)
    plan, times, flag = torch.zeros(_PLAN_BYTES, dtype=torch.uint8), torch.zeros(3), torch.zeros(1)
    works: dict[str, Callable[[], object]] = {
        "all_reduce_ms": lambda: host.all_reduce(flag),
        "broadcast_32_kib_ms": lambda: host.broadcast(plan),
        "gather_ms": lambda: host.gather(times),
    }
    found = {name: _median_ms(work, repetitions) for name, work in works.items()}
    host.disconnect()
    return found


def _median_ms(work: Callable[[], object], repetitions: int) -> float:
    measured = []
    for _ in range(repetitions):
        host.barrier()
        start = time.perf_counter()
        work()
        measured.append(1e3 * (time.perf_counter() - start))
    return statistics.median(measured)


def _sockets() -> int:
    """Count this process's open sockets."""
    links = (os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
    return sum("socket:" in link for link in links)


def _run(rank: int, arguments: argparse.Namespace, store: str, way: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name[:2] == "lo")
    before = _sockets()
    # With levels WORLD has no backend for host memory, as on CUDA: its connections do not count.
    dist.init_process_group(
        "gloo" if way == "one group" else "cuda:gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=arguments.ranks,
        timeout=_TIMEOUT,
    )
    node = arguments.ranks
    if way == "levels":
        before, node = _sockets(), arguments.ranks_per_node
    figures = measure(node, arguments.repetitions)
    if rank in (0, 1):
        facts = {"way": way, "rank": rank, "sockets": _sockets() - before, **figures}
        sys.stdout.write(json.dumps(facts) + "\n")
    dist.barrier(dist.new_group(backend="gloo", timeout=_TIMEOUT))
    dist.destroy_process_group()


def main() -> None:
    """Print the figures of rank 0, a leader, and of rank 1, in both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8, metavar="N")
    parser.add_argument("--ranks-per-node", type=int, default=4, metavar="N")
    parser.add_argument("--repetitions", type=int, default=200, metavar="K")
    arguments = parser.parse_args()
    for way in ("one group", "levels"):
        with tempfile.TemporaryDirectory() as folder:
            given = arguments, f"{folder}/store", way
            spawn(_run, args=given, nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
