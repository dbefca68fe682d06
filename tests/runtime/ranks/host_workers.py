"""What the ranks of test_host.py do."""

from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import ranks_where
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from runtime.collective_counts import counted_collectives


def all_collectives() -> tuple[dict[str, Any], Counter[str]]:
    """Call each collective in host memory; return the results, and the calls over all ranks at once."""
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    with counted_collectives() as counts:
        for name, op in (("sum", dist.ReduceOp.SUM), ("most", dist.ReduceOp.MAX)):
            x = torch.tensor([rank + 1, -rank])
            host.all_reduce(x, op)
            found[name] = x.tolist()
        found["largest"] = [host.largest((1 << 60) + rank), host.largest(0.1 - rank)]
        found["least"] = [host.least(-rank), host.least(rank + 0.1)]
        x = torch.tensor([7 * rank + 3])
        host.broadcast(x)
        found["broadcast"] = x.tolist()
        gathered = host.gather(torch.tensor([rank, 2 * rank]))
        found["gather"] = None if gathered is None else gathered.tolist()
        found["objects"] = host.gather_objects({"rank": rank})
        found["all objects"] = host.all_gather_objects(f"rank {rank}")
        host.barrier()
        found["ranks"] = ranks_where(rank % 3 == 1)
        found["text"] = from_rank_zero(lambda: "x" * 100_000)
    return found, counts


def results_with_and_without_levels(ranks_per_node: int) -> list[tuple[dict[str, Any], Counter[str]]]:
    """Call them over one group of all ranks, and with the levels of nodes."""
    host.disconnect()
    flat = all_collectives()
    host.connect(ranks_per_node, timedelta(seconds=60))
    by_node = all_collectives()
    # A later group has one name on all ranks.
    later = dist.new_group(timeout=timedelta(seconds=60))
    dist.barrier(later)
    return [flat, by_node]


def results_without_world_in_host_memory(ranks_per_node: int) -> dict[str, Any]:
    """Call them where WORLD moves tensors of devices alone, as with NCCL."""
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("cuda:gloo", store=PrefixStore("again", store), rank=rank, world_size=size)
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError:
        host.connect(ranks_per_node, timedelta(seconds=60))
        return all_collectives()[0]
    message = "WORLD has a backend for host memory"
    raise AssertionError(message)


def temporary_groups(ranks_per_node: int) -> tuple[float, str]:
    """Make a temporary group of all ranks, and one after a group that leaves ranks out; return its error."""
    everyone = range(dist.get_world_size())
    total = torch.tensor(1.0)
    with host.temporary_group(everyone) as group:
        dist.all_reduce(total, group=group)
    dist.new_group(list(range(ranks_per_node)), timeout=timedelta(seconds=60))
    try:
        with host.temporary_group(everyone) as group:
            dist.barrier(group)
    except AssertionError as error:
        return total.item(), str(error)
    return total.item(), ""
