"""The process groups of a run: made on first use by all ranks together, then kept."""

from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

from hydraulis.errors import InvalidInputError


class ProcessGroups:
    """Process groups by their ranks; a group of one rank is None and costs nothing.

    A group takes file descriptors and threads (gloo: 955 descriptors for 127 groups of 8 ranks) or device
    memory (NCCL: more than 500 MB each), so few may exist. Aligned blocks keep them few. With W ranks and
    degrees that are powers of two, blocks of every size make at most W/2 + W/4 + ... + 1 = W - 1 groups,
    and a rank is in log2(W) of them. If the ranks of a block are also cut into strided groups (context
    parallel across tensor parallel), there are fewer than W log2(W) in all.

    Ranks inside a group are in ascending order, whatever order they were named in.

    Args:
        timeout: of every collective in these groups; a rank that waits longer gets an error.
    """

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}

    def ensure(self, rank_sets: Iterable[Iterable[int]]) -> None:
        """Make the groups that are missing. Collective: every rank of WORLD calls it with the same sets.

        Args:
            rank_sets: the ranks of each group; repeats and single ranks are fine.

        Raises:
            InvalidInputError: a set names no rank, or one twice (code `process_group`).
        """
        wanted = {_key(ranks) for ranks in rank_sets}
        missing = sorted(ranks for ranks in wanted if len(ranks) > 1 and ranks not in self._groups)
        # In one global order and by every rank, members or not. `use_local_synchronization` would let
        # the others stay out, but it deadlocks on overlapping groups (torch 2.13, pytorch#189073).
        for ranks in missing:
            group = dist.new_group(list(ranks), timeout=self._timeout)
            self._groups[ranks] = None if group is dist.GroupMember.NON_GROUP_MEMBER else group

    def get(self, ranks: Iterable[int]) -> dist.ProcessGroup | None:
        """Return the group of these ranks, or None for a single rank.

        Raises:
            InvalidInputError: the group was never ensured, or this rank is not in it
                (code `process_group`).
        """
        key = _key(ranks)
        if len(key) == 1:
            return None
        group = self._groups.get(key)
        if group is None:
            cause = "this rank is not in it" if key in self._groups else "it was not made"
            message = f"no process group of ranks {key}: {cause}; name it to ensure() on every rank first"
            raise InvalidInputError(message, code="process_group")
        return group

    def __len__(self) -> int:
        """The number of groups made, those without this rank included."""
        return len(self._groups)


def _key(ranks: Iterable[int]) -> tuple[int, ...]:
    key = tuple(sorted(ranks))
    if not key or len(set(key)) < len(key):
        message = f"ranks = {key} must name at least one rank, and each once; correct the list"
        raise InvalidInputError(message, code="process_group")
    return key
