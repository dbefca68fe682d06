"""Moves parameters from home to this iteration's layout, and gradients back, bucket by bucket.

One uneven all-to-all per bucket each way. A rank sends only elements that the other one needs, the volume
of a reduce-scatter and an all-gather; contributions are added at home in rank order, so a run is
bit-reproducible. Parameters travel in the model's dtype, gradients in that of their sums.
"""

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydraulis._core import BucketTransfer, Plan, transfer
from hydraulis.runtime.buffers import StrategyBuffers
from hydraulis.runtime.home import HomeShare
from hydraulis.runtime.parameters import ModelParameters


class Transfers:
    """The transfers of one rank.

    Args:
        parameters: of the model.
        home: this rank's share.
        buffers: this rank's strategy buffers.
    """

    def __init__(self, parameters: ModelParameters, home: HomeShare, buffers: StrategyBuffers) -> None:
        self._parameters = parameters
        self._home = home
        self._buffers = buffers
        self._outgoing = _Staging()
        self._incoming = _Staging()

    def prepare(self, plan: Plan) -> list[BucketTransfer]:
        """Work out what this rank trades under a plan."""
        return transfer(self._parameters.table, self._home.layout, plan, dist.get_rank())

    def send_parameters(self, buckets: list[BucketTransfer]) -> None:
        """Fill every rank's strategy buffer from home. Collective."""
        for bucket in buckets:
            outgoing = self._outgoing.pack(self._home.master, bucket.home, self._buffers.parameter.dtype)
            received = self._exchange(outgoing, bucket.home_counts, bucket.held_counts)
            for target, values in _pieces(self._buffers.parameter, bucket.held, received):
                target.copy_(values)

    def collect_gradients(self, buckets: list[BucketTransfer]) -> None:
        """Sum every rank's gradients at home. Collective."""
        self._home.gradient.zero_()
        for bucket in buckets:
            gradient = self._buffers.gradient
            outgoing = self._outgoing.pack(gradient, bucket.held, gradient.dtype)
            received = self._exchange(outgoing, bucket.held_counts, bucket.home_counts)
            for target, values in _pieces(self._home.gradient, bucket.home, received):
                target += values

    def _exchange(
        self, outgoing: Tensor, send_counts: NDArray[np.int64], receive_counts: NDArray[np.int64]
    ) -> Tensor:
        """Send so many elements to each rank, and return what arrives."""
        incoming = self._incoming.take(int(receive_counts.sum()), outgoing.dtype)
        dist.all_to_all_single(incoming, outgoing, receive_counts.tolist(), send_counts.tolist())
        return incoming


class _Staging:
    """Memory that grows to the largest bucket's share, and then stays, whatever dtypes pass through it."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Give so many elements; their values mean nothing."""
        size = elements * dtype.itemsize
        if len(self._bytes) < size:
            self._bytes = self._bytes.new_empty(size)
        return self._bytes[:size].view(dtype)

    def pack(self, flat: Tensor, segments: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """Put segments of a flat buffer one after another, in this dtype."""
        packed = self.take(int(segments[:, 1].sum()), dtype)
        for values, place in _pieces(flat, segments, packed):
            place.copy_(values)
        return packed


def _pieces(flat: Tensor, segments: NDArray[np.int64], packed: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pair each segment of a flat buffer with its place in a packed one."""
    pieces = []
    end = 0
    for offset, elements in segments.tolist():
        pieces.append((flat[offset : offset + elements], packed[end : end + elements]))
        end += elements
    return pieces
