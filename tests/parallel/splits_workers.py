"""Functions that the tests of splits run on ranks, with a stand-in for the split of NCCL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from hydraulis._core import Cluster
from hydraulis.parallel import groups as groups_module
from hydraulis.parallel import splits
from hydraulis.parallel.groups import ProcessGroups, aligned_groups

TIMEOUT = timedelta(seconds=60)
Split = list[list[int]]


@contextmanager
def split_as_on_nccl(backend: str) -> Iterator[list[Split]]:
    """Let groups be made by splits, each recorded and carried out as one group after another.

    Args:
        backend: Backend of the groups in place of NCCL.
    """
    made: list[Split] = []

    def split_group(
        *, split_ranks: Split, timeout: timedelta, pg_options: Any, backend: str
    ) -> dist.ProcessGroup | None:
        assert (timeout, backend) == (TIMEOUT, "cuda:nccl")
        assert pg_options == ["options"]
        ranks = [rank for group in split_ranks for rank in group]
        assert len(ranks) == len(set(ranks)), "the groups of a split do not overlap"
        made.append(split_ranks)
        own = None
        for group in split_ranks:
            created = dist.new_group(group, timeout=timeout, backend=stand_in)
            own = created if dist.get_rank() in group else own
        return own

    stand_in = backend
    with (
        patch.object(dist, "split_group", split_group),
        patch.object(splits, "can_split", lambda _: True),
        patch.object(groups_module, "can_split", lambda _: True),
    ):
        yield made


def split_sums(rank_sets: Sequence[Sequence[int]]) -> tuple[list[Split], list[int]]:
    """Make groups by splits, and add up the ranks in each group of this rank."""
    with split_as_on_nccl("gloo") as made:
        groups = ProcessGroups(TIMEOUT, "nccl", options=lambda: ["options"])
        groups.ensure(rank_sets)
        groups.ensure(rank_sets)
    sums = []
    for ranks in rank_sets:
        if dist.get_rank() in ranks:
            total = torch.tensor([dist.get_rank()])
            dist.all_reduce(total, group=groups.get(ranks))
            sums.append(int(total))
    return made, sums


def splits_of_aligned_groups(degrees: Sequence[tuple[int, int]], cluster: Cluster) -> list[Split]:
    """Make all aligned groups of these degrees, twice; return the splits."""
    with split_as_on_nccl("fake") as made:
        groups = ProcessGroups(TIMEOUT, "nccl", options=lambda: ["options"])
        for _ in range(2):
            for rank_sets in aligned_groups(degrees, cluster):
                groups.ensure(rank_sets)
    return made
