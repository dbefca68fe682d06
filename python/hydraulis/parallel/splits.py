"""Makes many process groups by few calls: all disjoint groups of one size together, where the backend can.

Making an NCCL group with a bound device splits WORLD's communicator, and every rank takes part in each split,
member or not: 11,000 groups on 16,384 ranks would take hours. One split gives every rank a colour, so it
makes all groups that do not overlap.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

Ranks = tuple[int, ...]

_NCCL = "nccl"
# The device's backend alone, since stages exchange nothing in host memory.
_SPLIT_BACKEND = "cuda:nccl"


def disjoint_families(rank_sets: Iterable[Ranks]) -> list[list[Ranks]]:
    """Arrange sets of ranks in families of one size without overlaps, in the same order on all ranks.

    The aligned groups of one kind and degree are one family.
    """
    families: list[tuple[list[Ranks], set[int]]] = []
    for ranks in sorted(set(rank_sets), key=lambda one: (len(one), one)):
        of_size = (one for one in families if len(one[0][0]) == len(ranks))
        family = next((one for one in of_size if one[1].isdisjoint(ranks)), None)
        if family is None:
            family = [], set()
            families.append(family)
        family[0].append(ranks)
        family[1].update(ranks)
    return [sets for sets, _ in families]


def make_family(
    rank_sets: Sequence[Ranks], timeout: timedelta, backend: str, options: Callable[[], Any]
) -> dist.ProcessGroup | None:
    """Make a group for each of several disjoint sets of ranks, and return this rank's. Collective over WORLD.

    Args:
        rank_sets: Ranks of each group, the same on every rank.
        timeout: Timeout of every collective in these groups.
        backend: Backend of the groups.
        options: Function that returns the options of one new group.

    Returns:
        The group of this rank; None if it is in none.
    """
    rank = dist.get_rank()
    is_member = any(rank in ranks for ranks in rank_sets)
    if can_split(backend):
        made = dist.split_group(
            split_ranks=[list(ranks) for ranks in rank_sets],
            timeout=timeout,
            pg_options=options(),
            backend=_SPLIT_BACKEND,
        )
        return made if is_member else None
    own = None
    # In one global order and on every rank, member or not. `use_local_synchronization` needs the members
    # only, but it deadlocks on overlapping groups (torch 2.13, pytorch#189073).
    for ranks in rank_sets:
        made = dist.new_group(list(ranks), timeout=timeout, backend=backend, pg_options=options())
        own = made if rank in ranks else own
    return own


def can_split(backend: str) -> bool:
    """Return whether one call makes all groups of a family: NCCL with a bound device, torch 2.13 or newer.

    Before 2.13 torch would split every backend of WORLD.
    """
    if backend != _NCCL or "backend" not in inspect.signature(dist.split_group).parameters:
        return False
    world = dist.group.WORLD
    return world is not None and world.bound_device_id is not None
