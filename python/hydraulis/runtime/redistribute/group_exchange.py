"""Trades between the ranks of one process group, started and left to run."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydraulis.runtime.ranks.device import tensor_backend_of
from hydraulis.runtime.ranks.streams import Landmark


class StartedTrade(Protocol):
    """A trade that was started."""

    def is_completed(self) -> bool:
        """Whether it is done."""

    def wait(self) -> object:
        """Wait until it is done: on the CPU this thread, on CUDA the current stream."""


class GroupExchange:
    """Trades uneven shares between the ranks of a process group that is used for nothing else.

    Trades end in the order in which they were started, and every rank must start them in one order.

    Args:
        group: of this rank; None if it is alone.
        device: of what is traded.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group = group
        self._device = device

    @classmethod
    def make(cls, rank_sets: Iterable[list[int]], timeout: timedelta, device: torch.device) -> Self:
        """Make a group of each set of ranks, and give the exchange of this rank's. Collective.

        Args:
            rank_sets: the same on every rank, each rank in one of them.
            timeout: of each trade.
            device: of what is traded.
        """
        own = None
        for ranks in rank_sets:
            # A rank alone trades with nobody, and on NCCL a group of one takes 512 MiB.
            if len(ranks) > 1:
                backend, options = tensor_backend_of(device), _options(device, timeout)
                group = dist.new_group(ranks, timeout=timeout, backend=backend, pg_options=options)
                own = group if dist.get_rank() in ranks else own
        return cls(own, device)

    def start(
        self,
        outgoing: Tensor,
        incoming: Tensor,
        send_counts: NDArray[np.int64],
        receive_counts: NDArray[np.int64],
    ) -> StartedTrade:
        """Start to send so many elements to each rank of the group, in its order, and to receive from each.

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
        work: StartedTrade = dist.all_to_all_single(
            incoming,
            outgoing,
            receive_counts.tolist(),
            send_counts.tolist(),
            group=self._group,
            async_op=True,
        )
        return work


def _options(device: torch.device, timeout: timedelta) -> "dist.ProcessGroupNCCL.Options | None":
    """Let the group's stream be none that a group of a stage has (see `side_stream`)."""
    if device.type != "cuda":
        return None
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    # Torch sets it anyway, and warns where that changes it.
    options._timeout = timeout
    return options
