"""Opens the connections between ranks while nothing else is in flight.

NCCL connects two ranks of a communicator at their first message, on their hosts: each blocks until the other
one has reached the same message. Gloo connects all ranks of a group when it is made.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist


def connect_group(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect each rank of a group with each other one, and wait until it is. Collective over the group.

    Args:
        group: The group; this rank is a member.
        device: Device of the tensors that the group exchanges.
    """
    sent, received = torch.zeros((2, group.size()), device=device)
    dist.all_to_all_single(received, sent, group=group)
    _wait(device)


def connect_world(device: torch.device) -> None:
    """Connect all ranks for reductions of device tensors, and wait until they are. Collective.

    Args:
        device: Device of the tensors.
    """
    dist.all_reduce(torch.zeros(1, device=device))
    _wait(device)


def connect_pairs(pairs: Iterable[tuple[int, int]], device: torch.device) -> None:
    """Connect pairs of ranks of WORLD one after another, and wait until they are.

    Args:
        pairs: Pairs of ranks, the same on both ranks of each pair.
        device: Device of the tensors that the pairs exchange.
    """
    rank = dist.get_rank()
    # In one order on all ranks: each connection blocks two hosts.
    for pair in sorted({(min(pair), max(pair)) for pair in pairs}):
        if rank in pair:
            peer = pair[0] if rank == pair[1] else pair[1]
            sent, received = torch.zeros((2, 1), device=device)
            operations = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, sent, peer)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
