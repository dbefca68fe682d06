"""Process groups, made and connected on first use by all ranks together, and reused afterwards.

NCCL connects two ranks of a communicator at their first message, on their hosts: each blocks until the other
one has reached the same message. Groups are therefore connected while nothing else is in flight. Gloo
connects all ranks of a group when it is made.
"""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist

from hydraulis._core import Cluster
from hydraulis.errors import InvalidInputError
from hydraulis.parallel.splits import can_split, disjoint_families, make_family
from hydraulis.parallel.symmetric_memory import SymmetricBuffer, map_buffers


class ProcessGroups:
    """The process groups of a run by their ranks; a group of one rank is None.

    A group takes file descriptors and threads (gloo: 955 descriptors for 127 groups of 8 ranks) or device
    memory (NCCL: more than 500 MB per group), so their number must stay small. Aligned stage groups bound it
    for any number of strategies: see `most_groups_of_rank`.

    Ranks inside a group are in ascending order, independent of the caller's order.

    Args:
        timeout: Timeout of every collective in these groups; a rank that waits longer raises an error.
        backend: Backend of every group, matching the device of the exchanged tensors.
        connecting: Device of the exchanged tensors if the backend connects ranks at their first message, so
            that new groups and pairs are connected at once; None otherwise.
        options: Function that returns the options of one new group; None for the backend's own.
    """

    def __init__(
        self,
        timeout: timedelta,
        backend: str = "gloo",
        connecting: torch.device | None = None,
        options: Callable[[], object] = lambda: None,
    ) -> None:
        self._timeout = timeout
        self._backend = backend
        self._connecting = connecting
        self._options = options
        self._buffers: dict[tuple[int, ...], SymmetricBuffer] = {}
        self._pairs: set[tuple[int, int]] = set()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._made_s = 0.0

    def ensure(self, rank_sets: Iterable[Iterable[int]]) -> None:
        """Make the missing groups. Collective: every rank of WORLD calls this with the same sets.

        Args:
            rank_sets: Ranks of each group; repeated sets and single ranks are allowed.

        Raises:
            InvalidInputError: A set is empty or repeats a rank (code `argument_invalid`).
        """
        wanted = {_key(ranks) for ranks in rank_sets}
        missing = sorted(ranks for ranks in wanted if len(ranks) > 1 and ranks not in self._groups)
        if not missing:
            return
        start, rank = time.perf_counter(), dist.get_rank()
        made: list[dist.ProcessGroup] = []
        for family in disjoint_families(missing):
            own = make_family(family, self._timeout, self._backend, self._options)
            self._groups |= {ranks: own if rank in ranks else None for ranks in family}
            made += [] if own is None else [own]
        if self._connecting is not None:
            for group in made:
                connect_group(group, self._connecting)
        self._made_s += time.perf_counter() - start

    def connect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Connect the pairs of WORLD's ranks that are not yet connected. Collective, as `ensure`.

        Args:
            pairs: Ranks that will send to each other, the same on every rank.
        """
        if self._connecting is None:
            return
        start = time.perf_counter()
        missing = set(pairs) - self._pairs
        connect_pairs(missing, self._connecting)
        self._pairs |= missing
        self._made_s += time.perf_counter() - start

    def get(self, ranks: Iterable[int]) -> dist.ProcessGroup | None:
        """Return the group of these ranks, or None for a single rank.

        Raises:
            InvalidInputError: The group was not made by `ensure`, or this rank is not a member (code
                `argument_invalid`).
        """
        key = _key(ranks)
        if len(key) == 1:
            return None
        group = self._groups.get(key)
        if group is None:
            cause = "this rank is not a member" if key in self._groups else "it was not made"
            message = f"no process group of ranks {key}: {cause}; call ensure() on every rank first"
            raise InvalidInputError(message, code="argument_invalid")
        return group

    def empty(self) -> Self:
        """Return an empty set of groups with the same settings."""
        return type(self)(self._timeout, self._backend, self._connecting, self._options)

    def destroy(self) -> None:
        """Destroy the groups of this rank, with nothing in flight. Every rank of WORLD calls this."""
        for group in self._groups.values():
            if group is not None:
                dist.destroy_process_group(group)
        self._groups.clear()

    def share_memory(self, degrees: Iterable[int], cluster: Cluster) -> None:
        """Make the tensor groups of these degrees inside nodes, and map their symmetric buffers.

        Collective, as `ensure`, with nothing in flight. Torch numbers the mappings of a process, and the
        ranks of a group find each other by the number (`StoreExchange` in CUDASymmetricMemoryUtils.hpp).
        Every rank therefore maps one buffer of each degree, in one order, and a degree that does not divide a
        node has none.

        Args:
            degrees: Degrees tp; repeats are allowed.
            cluster: All ranks.
        """
        node, rank = min(cluster.gpus, cluster.gpus_per_node), dist.get_rank()
        for tp in sorted({tp for tp in degrees if tp > 1 and node % tp == 0}):
            self.ensure(range(first, first + tp) for first in range(0, cluster.gpus, tp))
            start, first = time.perf_counter(), rank // tp * tp
            group = self.get(range(first, first + tp))
            assert group is not None
            self._buffers[tuple(range(first, first + tp))] = map_buffers(group)
            self._made_s += time.perf_counter() - start

    def buffer(self, ranks: Iterable[int]) -> SymmetricBuffer | None:
        """Return the symmetric buffer of this rank's group of these ranks; None if it has none."""
        return self._buffers.get(_key(ranks))

    @property
    def can_split(self) -> bool:
        """Whether many groups cost one call, so that all groups of a degree are made with the first."""
        return can_split(self._backend)

    @property
    def made_ms(self) -> float:
        """Wall time in ms that this rank spent making groups and connecting ranks."""
        return 1e3 * self._made_s

    def __len__(self) -> int:
        """Return the number of groups made, including those without this rank."""
        return len(self._groups)


def aligned_groups(degrees: Iterable[tuple[int, int]], cluster: Cluster) -> tuple[list[range], list[range]]:
    """Return the tensor groups and the context groups of every aligned stage group, without overlaps.

    Args:
        degrees: Degrees tp and cp of each scheme; repeats are allowed.
        cluster: All ranks.
    """
    node = min(cluster.gpus, cluster.gpus_per_node)
    tensor, context = [], []
    for tp, cp in sorted(set(degrees)):
        width = tp * cp
        step = node if width <= node else width
        for first in range(0, cluster.gpus - step + 1, step):
            for start in range(first, first + step - width + 1, width):
                tensor += [range(start + rank * tp, start + (rank + 1) * tp) for rank in range(cp)]
                context += [range(start + rank, start + width, tp) for rank in range(tp)]
    return tensor, context


def most_groups_of_rank(degrees: Iterable[tuple[int, int]], num_ranks: int, ranks_per_node: int) -> int:
    """Return an upper bound of one rank's process groups over all strategies with these degrees.

    The stage group of `b = tp cp` ranks starts at a multiple of `b` inside a node, or covers whole nodes. At
    each position a rank is in one tensor group and one context group. Positions inside a node do not overlap.
    A wider stage group can start at any node, so a rank is in as many positions as the group has nodes, or as
    there are positions.

    With powers of two on one node of `2^k` ranks this is at most `k (k + 1) / 2` groups, 6 on 8 ranks: one
    consecutive group per number of ranks, and one strided group per pair of degrees above 1.

    Args:
        degrees: Degrees tp and cp of each scheme; repeats are allowed.
        num_ranks: Ranks of the cluster.
        ranks_per_node: Ranks of a node.
    """
    node = min(num_ranks, ranks_per_node)
    num_nodes = num_ranks // node

    def positions(stage_ranks: int) -> int:
        nodes = stage_ranks // node
        return 1 if stage_ranks <= node else max(0, min(nodes, num_nodes - nodes + 1))

    return sum(positions(tp * cp) * ((tp > 1) + (cp > 1)) for tp, cp in set(degrees))


def _key(ranks: Iterable[int]) -> tuple[int, ...]:
    key = tuple(sorted(ranks))
    if not key or len(set(key)) < len(key):
        message = f"ranks = {key} must have at least one rank and no rank twice; correct the list"
        raise InvalidInputError(message, code="argument_invalid")
    return key


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
