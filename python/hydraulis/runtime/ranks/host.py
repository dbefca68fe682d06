"""Collectives over all ranks in host memory: decisions, texts and measurements, no tensors of the model."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def all_reduce(x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    """Replace a host tensor by its reduction over all ranks, on every rank. Collective."""
    dist.all_reduce(x, op=op)


def broadcast(x: Tensor) -> None:
    """Replace a host tensor by rank 0's, on every rank. Collective."""
    dist.broadcast(x, src=0)


def gather(x: Tensor) -> Tensor | None:
    """Return the host tensors of all ranks on rank 0, stacked by rank; None on other ranks. Collective.

    Args:
        x: Tensor of the same shape and dtype on every rank.
    """
    if dist.get_rank() != 0:
        dist.gather(x, dst=0)
        return None
    by_rank = torch.empty(dist.get_world_size(), *x.shape, dtype=x.dtype)
    dist.gather(x, list(by_rank.unbind()), dst=0)
    return by_rank


def gather_objects(value: T) -> list[T] | None:
    """Return the values of all ranks on rank 0, by rank; None on other ranks. Collective."""
    by_rank: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, by_rank)
    return by_rank


def all_gather_objects(value: T) -> list[T]:
    """Return the values of all ranks on every rank, by rank. Collective."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, value)
    return by_rank
