"""What a rank's tensors take in an iteration: asked of CUDA's allocator, or counted."""

from collections.abc import Iterable

import torch
from torch import Tensor


class IterationMemory:
    """Gives the most bytes that a rank held in an iteration.

    CUDA's allocator knows them. The CPU's does not: there what lasts is counted, which is parameters,
    gradients, home state and what transfers have staged; what a micro-batch keeps for its backward is not.

    Args:
        device: of the rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        """Forget what was held before."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def most_bytes(self, lasting: Iterable[Tensor]) -> int:
        """Give the most bytes that were held at once since `begin`.

        Args:
            lasting: the tensors that the rank always holds, each of a storage of its own.
        """
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return sum(tensor.nbytes for tensor in lasting)
