"""Collectives over all ranks in host memory: decisions, texts and measurements, no tensors of the model.

On several nodes they take two levels, over gloo: the ranks of a node and its leader, its first rank, and the
leaders among themselves. gloo connects each rank of a group to all others: 16,384 ranks of one group need
16,383 connections each, and in nodes of 8 they need 7, and a leader 2,047 more. A reduction around a ring
takes twice as many messages, one after another, as there are ranks.

On one node, and on nodes of one rank, all ranks are one group. `joined` chooses the levels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

T = TypeVar("T")
Number = TypeVar("Number", int, float)


class _Levels(NamedTuple):
    """The groups of this rank.

    Attributes:
        node: Ranks of this rank's node.
        leader: First rank of the node.
        leaders: First ranks of all nodes; None on a rank that is no leader.
        timeout: Timeout of every collective.
    """

    node: dist.ProcessGroup
    leader: int
    leaders: dist.ProcessGroup | None
    timeout: timedelta


_levels: _Levels | None = None


def has_levels(num_ranks: int, ranks_per_node: int) -> bool:
    """Return whether the collectives of this many ranks take two levels."""
    return 1 < ranks_per_node < num_ranks and num_ranks % ranks_per_node == 0


def connect(ranks_per_node: int, timeout: timedelta) -> None:
    """Make the groups of both levels, if there are two. Collective.

    Args:
        ranks_per_node: Ranks of each node, the same on every rank; a node has consecutive ranks.
        timeout: Timeout of every collective.
    """
    global _levels
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    _levels = None
    if not has_levels(num_ranks, ranks_per_node):
        return
    leader = rank - rank % ranks_per_node
    # Only members make a group: otherwise each rank would wait for the groups of all nodes. The nodes' groups
    # do not overlap, so no rank waits for another that waits for it.
    node = _new_group(range(leader, leader + ranks_per_node), timeout)
    # Every rank makes two, so that all have the same number of groups (see `temporary_group`).
    others = range(0, num_ranks, ranks_per_node) if rank == leader else range(rank, rank + 1)
    group = _new_group(others, timeout)
    _levels = _Levels(node, leader, group if rank == leader else None, timeout)


def disconnect() -> None:
    """Forget the groups, which end with WORLD."""
    global _levels
    _levels = None


def all_reduce(x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    """Replace a host tensor by its reduction over all ranks, on every rank. Collective."""
    if _levels is None:
        dist.all_reduce(x, op=op)
        return
    dist.reduce(x, dst=_levels.leader, op=op, group=_levels.node)
    if _levels.leaders is not None:
        dist.all_reduce(x, op=op, group=_levels.leaders)
    dist.broadcast(x, src=_levels.leader, group=_levels.node)


def largest(number: Number) -> Number:
    """Return the largest number of any rank, on every rank. Collective."""
    return _reduced(number, dist.ReduceOp.MAX)


def least(number: Number) -> Number:
    """Return the least number of any rank, on every rank. Collective."""
    return _reduced(number, dist.ReduceOp.MIN)


def _reduced(number: Number, op: dist.ReduceOp.RedOpType) -> Number:
    x = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
    all_reduce(x, op)
    return type(number)(x.item())


def broadcast(x: Tensor) -> None:
    """Replace a host tensor by rank 0's, on every rank. Collective."""
    if _levels is None:
        dist.broadcast(x, src=0)
        return
    if _levels.leaders is not None:
        dist.broadcast(x, src=0, group=_levels.leaders)
    dist.broadcast(x, src=_levels.leader, group=_levels.node)


def barrier() -> None:
    """Wait for all ranks. Collective."""
    all_reduce(torch.zeros(()))


def gather(x: Tensor) -> Tensor | None:
    """Return the host tensors of all ranks on rank 0, stacked by rank; None on other ranks. Collective.

    Args:
        x: Tensor of the same shape and dtype on every rank.
    """
    by_rank: Tensor | None = _by_level(x, _stack, lambda of_nodes: of_nodes.flatten(0, 1))
    return by_rank


def gather_objects(value: T) -> list[T] | None:
    """Return the values of all ranks on rank 0, by rank; None on other ranks. Collective."""
    by_rank: list[T] | None = _by_level(value, _list, lambda of_nodes: list(chain.from_iterable(of_nodes)))
    return by_rank


def all_gather_objects(value: T) -> list[T]:
    """Return the values of all ranks on every rank, by rank. Collective."""
    if _levels is None:
        by_rank: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, value)
        return by_rank
    # Rank 0's values reach the leaders, and a leader's its node.
    held: list[Any] = [gather_objects(value)]
    if _levels.leaders is not None:
        dist.broadcast_object_list(held, src=0, group=_levels.leaders)
    dist.broadcast_object_list(held, src=_levels.leader, group=_levels.node)
    gathered: list[T] = held[0]
    return gathered


def has_node_groups() -> bool:
    """Return whether the collectives take two levels; WORLD may then have no gloo."""
    return _levels is not None


@contextmanager
def temporary_group(ranks: range) -> Iterator[dist.ProcessGroup]:
    """Make a gloo group, and end it afterwards; only where collectives take two levels. Collective.

    Args:
        ranks: Ranks of the group, this one among them. Each rank makes one group, and they do not overlap.
    """
    assert _levels is not None, "WORLD has gloo"
    # Torch names a group that its members alone make by its ranks and by the number of groups of this process
    # (`_hash_ranks_to_str` in torch/distributed/distributed_c10d.py, torch 2.13). After a group that leaves
    # ranks out, members would look for each other under different names until the timeout.
    number = len(distributed_c10d._world.pg_names)
    assert least(number) == largest(number), "ranks are in different numbers of groups"
    group = _new_group(ranks, _levels.timeout)
    yield group
    # Else a rank might close connections that another one still reads from.
    dist.barrier(group)
    dist.destroy_process_group(group)


Collect = Callable[[Any, int, dist.ProcessGroup | None], Any]


def _by_level(value: Any, collect: Collect, join: Callable[[Any], Any]) -> Any:
    """Collect values on rank 0: those of a node on its leader, and those of the leaders as one."""
    if _levels is None:
        return collect(value, 0, None)
    of_node = collect(value, _levels.leader, _levels.node)
    of_nodes = None if _levels.leaders is None else collect(of_node, 0, _levels.leaders)
    return None if of_nodes is None else join(of_nodes)


def _stack(x: Tensor, destination: int, group: dist.ProcessGroup | None) -> Tensor | None:
    if dist.get_rank() != destination:
        dist.gather(x, dst=destination, group=group)
        return None
    by_rank = torch.empty(dist.get_world_size(group), *x.shape, dtype=x.dtype)
    dist.gather(x, list(by_rank.unbind()), dst=destination, group=group)
    return by_rank


def _list(value: Any, destination: int, group: dist.ProcessGroup | None) -> list[Any] | None:
    is_destination = dist.get_rank() == destination
    by_rank: list[Any] | None = [None] * dist.get_world_size(group) if is_destination else None
    dist.gather_object(value, by_rank, dst=destination, group=group)
    return by_rank


def _new_group(ranks: range, timeout: timedelta) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(
        list(ranks), timeout=timeout, backend="gloo", use_local_synchronization=True
    )
    return group
