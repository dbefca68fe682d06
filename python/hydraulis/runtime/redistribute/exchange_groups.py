"""Process groups in which buckets are exchanged: the rank's node and the rank's rail."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydraulis._core import OptimizerShards
from hydraulis.parallel.communicators import nccl_options
from hydraulis.parallel.groups import connect_group
from hydraulis.parallel.splits import make_family
from hydraulis.runtime.ranks.device import CPU, tensor_backend_of
from hydraulis.runtime.ranks.streams import SideStream, StreamEvent


class StartedExchange(Protocol):
    """An exchange in flight."""

    def is_completed(self) -> bool:
        """Whether it has completed."""

    def wait(self) -> object:
        """Wait until it completes: this thread on the CPU, the current stream on CUDA."""


class ExchangeGroup:
    """Uneven all-to-all exchanges in a process group that serves nothing else.

    Exchanges complete in the order of their starts; every rank must start them in the same order.

    Attributes:
        place: Place of this rank in the group.

    Args:
        group: This rank's process group; None if the rank is alone in it.
        device: Device of the exchanged tensors.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group = group
        self._device = device
        self.place = 0 if group is None else group.rank()

    @classmethod
    def create(
        cls, rank_sets: Iterable[list[int]], timeout: timedelta, device: torch.device, channels: int
    ) -> Self:
        """Create a process group for each set of ranks, and return this rank's. Collective.

        Args:
            rank_sets: Ranks of each group, the same on every rank; each rank is in one set.
            timeout: Timeout of each exchange.
            device: Device of the exchanged tensors.
            channels: Most channels of an NCCL communicator.
        """
        # A single rank needs no group, which would take 512 MiB on NCCL.
        shared = [tuple(ranks) for ranks in rank_sets if len(ranks) > 1]
        options = partial(_options, device, timeout, channels)
        own = make_family(shared, timeout, tensor_backend_of(device), options) if shared else None
        if own is not None and device.type == "cuda":
            connect_group(own, device)
        return cls(own, device)

    @property
    def is_alone(self) -> bool:
        """Whether the rank is alone in its group; `start` then takes one tensor as outgoing and incoming."""
        return self._group is None

    def start(
        self,
        outgoing: Tensor,
        incoming: Tensor,
        send_counts: NDArray[np.int64],
        receive_counts: NDArray[np.int64],
    ) -> StartedExchange:
        """Start an exchange with all ranks of the group.

        Args:
            outgoing: Elements to send, flat and contiguous; not to be changed before the exchange completes.
            incoming: Buffer of the received elements, flat and contiguous, of the same dtype.
            send_counts: Number of elements for each rank of the group, in its order.
            receive_counts: Number of elements from each rank.
        """
        if self._group is None:
            if incoming.data_ptr() != outgoing.data_ptr():
                incoming.copy_(outgoing)
            return StreamEvent(self._device)
        work: StartedExchange = dist.all_to_all_single(
            incoming,
            outgoing,
            receive_counts.tolist(),
            send_counts.tolist(),
            group=self._group,
            async_op=True,
        )
        return work


class ExchangeGroups:
    """The rank's groups for the exchange of buckets, and the side stream of their work. Collective to create.

    Buckets have groups of their own, because pipeline stages communicate in other orders on other ranks. On
    CUDA exchanges follow each other on a side stream, and computation waits for the buckets that it needs.

    Attributes:
        inside: Group of this rank's node.
        between: Group of this rank's rail; None on one node.

    Args:
        layout: Owners' layout, which has the nodes and the rails.
        timeout: Timeout of each exchange.
        device: Device of the exchanged tensors.
        channels: Most channels of an NCCL communicator.
    """

    def __init__(
        self, layout: OptimizerShards, timeout: timedelta, device: torch.device = CPU, channels: int = 8
    ) -> None:
        self._stream = SideStream(device)
        nodes = _distinct(layout.node_of(rank) for rank in range(dist.get_world_size()))
        rails = _distinct(layout.rail_of(rank) for rank in range(dist.get_world_size()))
        self.inside = ExchangeGroup.create(nodes, timeout, device, channels)
        self.between = ExchangeGroup.create(rails, timeout, device, channels) if len(nodes) > 1 else None

    @property
    def is_alone(self) -> bool:
        """Whether the rank is the only one of the run, so that exchanges need no staging."""
        return self.between is None and self.inside.is_alone

    @property
    def has_side_stream(self) -> bool:
        """Whether exchanges have a stream of their own, so that waiting there holds up no computation."""
        return self._stream.is_apart

    @contextmanager
    def on_side_stream(self) -> Iterator[None]:
        """Put device work on the side stream, behind the computation issued so far."""
        with self._stream.beside():
            yield

    def join(self) -> None:
        """Let computation wait for all work on the side stream."""
        self._stream.join()


def _distinct(rank_sets: Iterator[list[int]]) -> list[list[int]]:
    return [list(ranks) for ranks in dict.fromkeys(map(tuple, rank_sets))]


def _options(
    device: torch.device, timeout: timedelta, channels: int
) -> "dist.ProcessGroupNCCL.Options | None":
    """Give the group a stream that no group of a stage has (see `runtime/ranks/streams.py`)."""
    return nccl_options(channels, timeout, has_priority=True) if device.type == "cuda" else None
