"""Workers of test_groups.py."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from hydraulis.parallel import groups as groups_module
from hydraulis.parallel.groups import ProcessGroups, connect_group, connect_pairs, connect_world

CPU = torch.device("cpu")


def messages_while_connecting(
    rank_sets: Sequence[list[int]], pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """Connect groups, then pairs; return the ranks of each communication of this rank."""
    groups = [group for group in map(dist.new_group, rank_sets) if isinstance(group, dist.ProcessGroup)]
    met: list[tuple[int, ...]] = []
    all_to_all, batch = dist.all_to_all_single, dist.batch_isend_irecv

    def exchange(received: Any, sent: Any, *, group: dist.ProcessGroup) -> Any:
        met.append(tuple(dist.get_process_group_ranks(group)))
        assert len(sent) == len(received) == group.size()
        return all_to_all(received, sent, group=group)

    def send(operations: list[dist.P2POp]) -> Any:
        met.append(tuple(sorted({dist.get_rank(), *(one.peer for one in operations)})))
        return batch(operations)

    with patch.object(dist, "all_to_all_single", exchange), patch.object(dist, "batch_isend_irecv", send):
        for group in groups:
            connect_group(group, CPU)
        connect_pairs(pairs, CPU)
    return met


def sums_while_connecting() -> list[int]:
    """Connect all ranks; return the number of elements of each reduction."""
    reduced: list[int] = []
    all_reduce = dist.all_reduce

    def reduce(x: torch.Tensor) -> Any:
        reduced.append(x.numel())
        return all_reduce(x)

    with patch.object(dist, "all_reduce", reduce):
        connect_world(CPU)
    return reduced


def connected_once(
    connecting: torch.device | None,
) -> tuple[list[tuple[int, ...]], list[set[tuple[int, int]]], bool]:
    """Ensure groups and pairs twice; return this rank's groups and the pairs that were connected."""
    made: list[tuple[int, ...]] = []
    pairs: list[set[tuple[int, int]]] = []

    def group(group: dist.ProcessGroup, device: torch.device) -> None:
        assert device == CPU
        made.append(tuple(dist.get_process_group_ranks(group)))

    with (
        patch.object(groups_module, "connect_group", group),
        patch.object(groups_module, "connect_pairs", lambda missing, _: pairs.append(set(missing))),
    ):
        groups = ProcessGroups(timedelta(seconds=60), "gloo", connecting)
        for wanted in ([[0, 1], [2]], [[0, 1], [1, 2]]):
            groups.ensure(wanted)
        for new in ([(0, 1)], [(0, 1), (1, 2)], [(0, 1)]):
            groups.connect(new)
    return made, pairs, groups.made_ms > 0
