"""Two ranks on one device exchange over NCCL: all-reduce, all-to-all, and messages between a pair.

    python -m benches.first_gpu.nccl_probe --json FILE

It uses no part of Hydraulis but the settings of a shared device, so that its failure is NCCL's or theirs.
"""

import argparse
import json
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from hydraulis.runtime.ranks.device import choose_device, prepare_device
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE

_NUM_RANKS = 2
_ELEMENTS = 1 << 20


def main() -> int:
    """Start the ranks, and print the values that rank 0 received."""
    parser = argparse.ArgumentParser(prog="benches.first_gpu.nccl_probe", description=__doc__)
    parser.add_argument("--json", required=True, type=Path, metavar="FILE")
    path = parser.parse_args().json
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_exchange, (port, path), _NUM_RANKS)
    sys.stdout.write(path.read_text(encoding="utf-8"))
    return 0


def _exchange(rank: int, port: int, path: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": _NUM_RANKS, "LOCAL_WORLD_SIZE": _NUM_RANKS}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ |= {SHARE_VARIABLE: "1", "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    device = choose_device("cuda")
    prepare_device(device)
    start = time.perf_counter()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=_NUM_RANKS,
        timeout=timedelta(seconds=60),
        device_id=device,
    )
    own = torch.full((_ELEMENTS,), float(rank + 1), device=device)
    total = own.clone()
    dist.all_reduce(total)
    received = torch.empty_like(own)
    dist.all_to_all_single(received, own)
    message = torch.empty_like(own)
    peer = 1 - rank
    operations = [dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, message, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60), backend="nccl")
    again = own.clone()
    dist.all_reduce(again, group=group)
    torch.cuda.synchronize()
    is_right = {
        "all_reduce": bool((total == 3.0).all()),
        "all_to_all": bool(
            (received == torch.arange(1.0, 3.0, device=device).repeat_interleave(_ELEMENTS // 2)).all()
        ),
        "messages": bool((message == peer + 1.0).all()),
        "group": bool((again == 3.0).all()),
    }
    if rank == 0:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        figures = {
            "is_right": is_right,
            "nccl": list(torch.cuda.nccl.version()),
            "seconds": time.perf_counter() - start,
            "device_bytes_in_use": total_bytes - free_bytes,
            "allocator_bytes": torch.cuda.memory_reserved(device),
        }
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
