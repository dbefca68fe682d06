"""The process groups of a run: made on first use by all ranks together, then kept."""

import time
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

from hydraulis.errors import InvalidInputError


class ProcessGroups:
    """Process groups by their ranks; a group of one rank is None and costs nothing.

    A group takes file descriptors and threads (gloo: 955 descriptors for 127 groups of 8 ranks) or device
    memory (NCCL: more than 500 MB each), so few may exist. Aligned blocks keep them few, however many
    strategies a run takes: `most_groups` says how many there are at most.

    Ranks inside a group are in ascending order, whatever order they were named in.

    Args:
        timeout: of every collective in these groups; a rank that waits longer gets an error.
        backend: of all of them, for the device of what they exchange.
    """

    def __init__(self, timeout: timedelta, backend: str = "gloo") -> None:
        self._timeout = timeout
        self._backend = backend
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._made_s = 0.0

    def ensure(self, rank_sets: Iterable[Iterable[int]]) -> None:
        """Make the groups that are missing. Collective: every rank of WORLD calls it with the same sets.

        Args:
            rank_sets: the ranks of each group; repeats and single ranks are fine.

        Raises:
            InvalidInputError: a set names no rank, or one twice (code `argument_invalid`).
        """
        wanted = {_key(ranks) for ranks in rank_sets}
        missing = sorted(ranks for ranks in wanted if len(ranks) > 1 and ranks not in self._groups)
        if not missing:
            return
        # In one global order and by every rank, members or not. `use_local_synchronization` would let
        # the others stay out, but it deadlocks on overlapping groups (torch 2.13, pytorch#189073).
        start = time.perf_counter()
        for ranks in missing:
            group = dist.new_group(list(ranks), timeout=self._timeout, backend=self._backend)
            self._groups[ranks] = None if group is dist.GroupMember.NON_GROUP_MEMBER else group
        self._made_s += time.perf_counter() - start

    def get(self, ranks: Iterable[int]) -> dist.ProcessGroup | None:
        """Return the group of these ranks, or None for a single rank.

        Raises:
            InvalidInputError: the group was never ensured, or this rank is not in it
                (code `argument_invalid`).
        """
        key = _key(ranks)
        if len(key) == 1:
            return None
        group = self._groups.get(key)
        if group is None:
            cause = "this rank is not in it" if key in self._groups else "it was not made"
            message = f"no process group of ranks {key}: {cause}; name it to ensure() on every rank first"
            raise InvalidInputError(message, code="argument_invalid")
        return group

    @property
    def made_ms(self) -> float:
        """Time on the wall that making all groups so far took this rank."""
        return 1e3 * self._made_s

    def __len__(self) -> int:
        """The number of groups made, those without this rank included."""
        return len(self._groups)


def most_groups(degrees: Iterable[tuple[int, int]], num_ranks: int, ranks_per_node: int) -> int:
    """Bound the groups of all strategies whose replicas have these degrees.

    The `b = tp cp` ranks of a stage are a block: inside a node at a multiple of `b`, or whole nodes. So it
    has `W // n` times `n // b` places on `W` ranks in nodes of `n`, or `W / n - b / n + 1` if it is wider
    than a node. In each of them it has `cp` tensor groups and `tp` context groups.

    Tensor groups are consecutive ranks, the same ones whatever `cp` is. So where all degrees are powers of
    two, on one node of `W = 2^k` ranks there are `W - 1` tensor groups of any strategies, and `k 2^k - 2 (2^k
    - 1)` context groups beside those that are tensor groups too: `W log2 W - W + 1` together, 17 on 8 ranks.

    Args:
        degrees: tp and cp of each scheme; repeats are fine.
        num_ranks: of the cluster.
        ranks_per_node: of a node.
    """
    node = min(num_ranks, ranks_per_node)
    num_nodes = num_ranks // node

    def places(block: int) -> int:
        return num_nodes * (node // block) if block <= node else max(0, num_nodes - block // node + 1)

    return sum(places(tp * cp) * ((cp if tp > 1 else 0) + (tp if cp > 1 else 0)) for tp, cp in set(degrees))


def most_groups_of_rank(degrees: Iterable[tuple[int, int]], num_ranks: int, ranks_per_node: int) -> int:
    """Bound those groups of `most_groups` that one rank is in; it takes the same arguments.

    In a place a rank is in one tensor and one context group. Places inside a node do not overlap; one that is
    wider begins at any node, so a rank is in as many of them as it has nodes, or as there are.

    With powers of two on one node of `2^k` ranks that is at most `k (k + 1) / 2` groups, 6 on 8 ranks: for
    each number of ranks one consecutive, and for each pair of degrees above 1 a strided one.
    """
    node = min(num_ranks, ranks_per_node)
    num_nodes = num_ranks // node

    def places(block: int) -> int:
        wide = block // node
        return 1 if block <= node else max(0, min(wide, num_nodes - wide + 1))

    return sum(places(tp * cp) * ((tp > 1) + (cp > 1)) for tp, cp in set(degrees))


def _key(ranks: Iterable[int]) -> tuple[int, ...]:
    key = tuple(sorted(ranks))
    if not key or len(set(key)) < len(key):
        message = f"ranks = {key} must name at least one rank, and each once; correct the list"
        raise InvalidInputError(message, code="argument_invalid")
    return key
