"""One bucket's trade between all ranks, started and left to run."""

from datetime import timedelta

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor


class BucketExchange:
    """Trades uneven shares between all ranks, in a process group of its own.

    Trades end in the order in which they were started, and every rank must start them in one order. A group
    of their own, because what stages exchange meanwhile comes at other moments on other ranks.

    Args:
        timeout: of each trade.
    """

    def __init__(self, timeout: timedelta) -> None:
        # One rank trades with nobody, and on NCCL a group of one takes 512 MiB.
        self._group = dist.new_group(timeout=timeout) if dist.get_world_size() > 1 else None

    def start(
        self,
        outgoing: Tensor,
        incoming: Tensor,
        send_counts: NDArray[np.int64],
        receive_counts: NDArray[np.int64],
    ) -> dist.Work | None:
        """Start to send so many elements to each rank, in rank order, and to receive so many from each.

        Args:
            outgoing: flat and contiguous, not to be changed until the trade is done.
            incoming: likewise, of the same dtype; filled when the trade is done.
            send_counts: elements for each rank.
            receive_counts: elements from each rank.

        Returns:
            What to wait for; None where it is done already.
        """
        if self._group is None:
            incoming.copy_(outgoing)
            return None
        work: dist.Work = dist.all_to_all_single(
            incoming,
            outgoing,
            receive_counts.tolist(),
            send_counts.tolist(),
            group=self._group,
            async_op=True,
        )
        return work
