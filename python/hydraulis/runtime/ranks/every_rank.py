"""Raises the error of one rank on all ranks, which would otherwise wait until their collectives time out."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks import host

T = TypeVar("T")


def everywhere(error: HydraulisError) -> HydraulisError:
    """Mark an error that every rank raises at the same place."""
    error.is_everywhere = True
    return error


def raise_everywhere(error: HydraulisError | None) -> None:
    """Raise the error of the lowest rank that has one, on every rank; return if no rank has one. Collective.

    Without an error the call costs one all-reduce of a number.

    Raises:
        HydraulisError: The error of the lowest rank that has one.
    """
    if host.largest(int(error is not None)):
        errors = host.all_gather_objects(error)
        raise everywhere(next(one for one in errors if one is not None))


def ranks_where(holds: bool) -> list[int]:  # noqa: FBT001 - one value of each rank
    """Return the ranks on which `holds` is true, on every rank. Collective."""
    flags = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    flags[dist.get_rank()] = int(holds)
    host.all_reduce(flags)
    return [int(rank) for rank in torch.nonzero(flags)]


def on_every_rank(make: Callable[[], T]) -> T:
    """Call `make` on every rank, and return this rank's result. Collective.

    Raises:
        HydraulisError: The error of the lowest rank on which `make` failed, on every rank.
    """
    try:
        made = make()
    except HydraulisError as error:
        raise_everywhere(error)
        raise
    raise_everywhere(None)
    return made
