"""Memory for keys, values and their gradients on their way around the ring.

On CUDA torch holds the memory of each message until the device has passed it. The host runs ahead of the
device, so a new tensor for each hop and layer would take gigabytes that no plan counts. All layers of all
micro-batches that exist at a time therefore share two pairs of buffers.
"""

import math
import weakref
from typing import Literal

import torch
from torch import Tensor


class RingBuffers:
    """A pair of buffers for keys and values, and one for their gradients.

    At each hop one buffer of a pair is sent and the other one received, so a rank must have waited for a hop
    before the next one starts.
    """

    def __init__(self) -> None:
        self._num_tokens = 0
        self._pairs: dict[str, tuple[Tensor, Tensor]] = {}

    def fit(self, num_tokens: int) -> None:
        """Note the tokens of a micro-batch, so that the first one already takes the memory of the largest."""
        self._num_tokens = max(self._num_tokens, num_tokens)

    def pair(
        self, use: Literal["key_value", "gradient"], k_tKD: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return two uninitialised buffers [2, t, K, D] for keys and values like these."""
        shape = (2, *k_tKD.shape)
        size = math.prod(shape)
        if use not in self._pairs or len(self._pairs[use][0]) < size:
            self.fit(k_tKD.shape[0])
            most = size // max(1, k_tKD.shape[0]) * self._num_tokens
            first, second = (k_tKD.new_empty(most, dtype=dtype) for _ in range(2))
            self._pairs[use] = (first, second)
        first, second = self._pairs[use]
        return first[:size].view(shape), second[:size].view(shape)


class SharedRingBuffers:
    """Gives micro-batches that exist at the same time the same buffers, and frees them with the last one."""

    def __init__(self) -> None:
        self._latest: weakref.ref[RingBuffers] | None = None

    def for_tokens(self, num_tokens: int) -> RingBuffers:
        """Return the buffers of a micro-batch.

        Args:
            num_tokens: Tokens of this rank.
        """
        buffers = self._latest() if self._latest else None
        if buffers is None:
            buffers = RingBuffers()
            self._latest = weakref.ref(buffers)
        buffers.fit(num_tokens)
        return buffers
