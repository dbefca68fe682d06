"""One bucket's trade between all ranks, started and left to run beside computation."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydraulis.runtime.device import CPU, tensor_backend_of
from hydraulis.runtime.side_stream import Landmark, SideStream


class Trade(Protocol):
    """A trade that was started."""

    def is_completed(self) -> bool:
        """Whether it is done."""

    def wait(self) -> object:
        """Wait until it is done: on the CPU this thread, on CUDA the current stream."""


class BucketExchange:
    """Trades uneven shares between all ranks, in a process group of its own.

    Trades end in the order in which they were started, and every rank must start them in one order. A group
    of their own, because what stages exchange meanwhile comes at other moments on other ranks.

    On CUDA trades follow each other in a stream of their own, and whoever computes waits for those alone that
    it needs. Nothing that another rank computes waits for is put behind one, so no order of starts on
    different ranks makes them wait in a circle.

    Args:
        timeout: of each trade.
        device: of what is traded.
    """

    def __init__(self, timeout: timedelta, device: torch.device = CPU) -> None:
        self._device = device
        self._stream = SideStream(device)
        # One rank trades with nobody, and on NCCL a group of one takes 512 MiB.
        self._group = None
        if dist.get_world_size() > 1:
            self._group = dist.new_group(timeout=timeout, backend=tensor_backend_of(device))

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

    def start(
        self,
        outgoing: Tensor,
        incoming: Tensor,
        send_counts: NDArray[np.int64],
        receive_counts: NDArray[np.int64],
    ) -> Trade:
        """Start to send so many elements to each rank, in rank order, and to receive so many from each.

        Args:
            outgoing: flat and contiguous, not to be changed until the trade is done.
            incoming: likewise, of the same dtype; filled when the trade is done.
            send_counts: elements for each rank.
            receive_counts: elements from each rank.

        Returns:
            What to wait for.
        """
        if self._group is None:
            incoming.copy_(outgoing)
            return Landmark(self._device)
        work: Trade = dist.all_to_all_single(
            incoming,
            outgoing,
            receive_counts.tolist(),
            send_counts.tolist(),
            group=self._group,
            async_op=True,
        )
        return work
