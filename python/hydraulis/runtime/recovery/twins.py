"""Sends copies of optimizer shards to ranks of other nodes, which keep them as twins."""

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Cluster
from hydraulis.parallel.splits import make_family
from hydraulis.runtime.recovery.shard_part import ShardPart


class TwinExchange:
    """The exchange of copies between this rank and ranks of the neighbouring nodes. Collective to create.

    The rank with the same place in the next node keeps the twin of a shard. The messages are in host memory,
    in groups of the ranks with one place, which serve nothing else: a thread may use them.

    Attributes:
        source: Rank whose twin this rank keeps.

    Args:
        cluster: All ranks, on at least two nodes of equal size.
        timeout: Timeout of each message.
    """

    def __init__(self, cluster: Cluster, timeout: timedelta) -> None:
        rank, of_node = dist.get_rank(), cluster.gpus_per_node
        self._holder = (rank + of_node) % cluster.gpus
        self.source = (rank - of_node) % cluster.gpus
        rails = [tuple(range(place, cluster.gpus, of_node)) for place in range(of_node)]
        self._group = make_family(rails, timeout, "gloo", lambda: None)

    @classmethod
    def create(cls, cluster: Cluster, timeout: timedelta) -> "TwinExchange | None":
        """Create the exchange; None on one node, whose loss would take the twins too. Collective."""
        return cls(cluster, timeout) if has_twins(cluster) else None

    def exchange(self, own: Mapping[str, Tensor], part: ShardPart) -> Mapping[str, Tensor]:
        """Send this rank's copy, and return the one of `source`. Collective; callable from any thread.

        Args:
            own: Flat buffers of this rank, in host memory, of equal types.
            part: The same part of the shard of `source`.
        """
        dtype = next(iter(own.values())).dtype
        received = {name: torch.empty(part.elements, dtype=dtype) for name in part.buffers}
        messages = [
            *((dist.isend, flat, self._holder, tag) for tag, flat in enumerate(own.values())),
            *((dist.irecv, flat, self.source, tag) for tag, flat in enumerate(received.values())),
        ]
        works = [
            start(flat, rank, group=self._group, tag=tag) for start, flat, rank, tag in messages if len(flat)
        ]
        for work in works:
            assert work is not None, "every rank is in the group"
            work.wait()
        return received


def has_twins(cluster: Cluster) -> bool:
    """Return whether shards have twins: on several nodes, which all have the same number of ranks."""
    return cluster.gpus > cluster.gpus_per_node
