"""What buckets travel by: groups of their own, and on CUDA a stream of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from hydraulis._core import Home
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.redistribute.group_exchange import GroupExchange


class BucketExchange:
    """Carries buckets between home and a strategy's layout. Collective to make.

    In groups of their own, because what stages exchange meanwhile comes at other moments on other ranks.

    On CUDA trades follow each other in a stream of their own, and whoever computes waits for those alone that
    it needs. Nothing that another rank computes waits for is put behind one, so no order of starts on
    different ranks makes them wait in a circle.

    Attributes:
        inside: this rank's node.
        between: this rank's rail; None where there is one node.

    Args:
        home: whose nodes and rails trade.
        timeout: of each trade.
        device: of what is traded.
    """

    def __init__(self, home: Home, timeout: timedelta, device: torch.device = CPU) -> None:
        self._stream = SideStream(device)
        nodes = _distinct(home.node_of(rank) for rank in range(dist.get_world_size()))
        rails = _distinct(home.rail_of(rank) for rank in range(dist.get_world_size()))
        self.inside = GroupExchange.make(nodes, timeout, device)
        self.between = GroupExchange.make(rails, timeout, device) if len(nodes) > 1 else None

    @property
    def is_apart(self) -> bool:
        """Whether trades have a stream of their own, so that to wait for one there holds nobody up."""
        return self._stream.is_apart

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Pack, start, wait and add up beside computation, after all that was computed until now."""
        with self._stream.beside():
            yield

    def join(self) -> None:
        """Let computation wait for all that was done beside it."""
        self._stream.join()


def _distinct(rank_sets: Iterator[list[int]]) -> list[list[int]]:
    return [list(ranks) for ranks in dict.fromkeys(map(tuple, rank_sets))]
