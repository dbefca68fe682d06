"""Functions that the ranks of test_collectives.py run."""

from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.errors import InvalidInputError
from hydraulis.parallel import collectives
from hydraulis.parallel.collectives import all_gather_tokens, reduce_scatter_tokens


def gather(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gather this rank's chunk of x; the gradient is of sum(weight * gathered) * (rank + 1)."""
    own = x.chunk(dist.get_world_size())[dist.get_rank()].clone().requires_grad_()
    gathered = all_gather_tokens(own, dist.group.WORLD)
    (gathered * weight * (dist.get_rank() + 1)).sum().backward()
    assert own.grad is not None
    return gathered.detach(), own.grad


def scatter(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Sum (rank + 1) * x and return a chunk; the gradient is of sum(its chunk of weight * chunk)."""
    addend = (x * (dist.get_rank() + 1)).requires_grad_()
    kept = reduce_scatter_tokens(addend, dist.group.WORLD)
    (kept * weight.chunk(dist.get_world_size())[dist.get_rank()]).sum().backward()
    assert addend.grad is not None
    return kept.detach(), addend.grad


def scatter_addends(addends: list[Tensor]) -> tuple[Tensor, int]:
    """Sum one addend per rank; also return the bytes of the storage behind this rank's tokens."""
    kept = reduce_scatter_tokens(addends[dist.get_rank()], dist.group.WORLD)
    return kept, kept.untyped_storage().nbytes()


def scatter_both_ways(addends: list[Tensor]) -> list[tuple[Tensor, int]]:
    """Sum one addend per rank by the backend's reduce-scatter, and in rank order."""
    results = []
    for is_native in (True, False):
        with patch.object(collectives, "_is_native", lambda _, is_native=is_native: is_native):
            results.append(scatter_addends(addends))
    return results


def scatter_uneven() -> str:
    try:
        reduce_scatter_tokens(torch.zeros(5, 2), dist.group.WORLD)
    except InvalidInputError as error:
        return f"{error.code}: {error}"
    return "no error"
