"""What a rank's tensors take in an iteration: asked of CUDA's allocator, or counted."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydraulis._core import Backward, Forward, Plan, Position

if TYPE_CHECKING:
    from hydraulis.runtime.memory.saved_activations import KeptActivations


class IterationMemory:
    """Gives the most bytes that a rank held in an iteration.

    CUDA's allocator knows them. The CPU's does not, so tensors are counted. What lasts is parameters,
    gradients, home state and what transfers have staged. What micro-batches keep for their backward is
    counted while they run, which takes time: hence only in iterations in which the rank holds more tokens
    than it did before at the same position, so that the fullest of a run is always among them.

    Args:
        device: of the rank.

    Attributes:
        kept: counts what micro-batches keep in this iteration; None where that is not done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counted: dict[Position, int] = {}
        self.kept: KeptActivations | None = None

    def begin(
        self, lasting: Iterable[Tensor] = (), position: Position | None = None, tokens: int = 0
    ) -> None:
        """Forget what was held before.

        Args:
            lasting: the tensors that the rank always holds.
            position: of the rank in the iteration to come; None without work.
            tokens: of the micro-batches that it will hold at once, at most.
        """
        self.kept = None
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif position is not None and tokens > self._counted.get(position, 0):
            self._counted[position] = tokens
            self.kept = _counted(lasting)

    def most_bytes(self, lasting: Iterable[Tensor]) -> int:
        """Give the most bytes that were held at once since `begin`; on the CPU what lasts alone.

        Args:
            lasting: the tensors that the rank always holds, each of a storage of its own.
        """
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return sum(tensor.nbytes for tensor in lasting)

    def peak_bytes(self, lasting: Iterable[Tensor]) -> int | None:
        """Give the same with what micro-batches kept; None where that was not counted."""
        if self._device.type == "cuda":
            return self.most_bytes(lasting)
        return None if self.kept is None else self.most_bytes(lasting) + self.kept.most_bytes


def _counted(lasting: Iterable[Tensor]) -> "KeptActivations | None":
    """Begin to count; None where torch lacks what that needs and does not promise: a run goes on without."""
    try:
        from hydraulis.runtime.memory.saved_activations import KeptActivations
    except ImportError:
        return None
    return KeptActivations(lasting)


def tokens_at_once(plan: Plan, rank: int) -> int:
    """Give the most tokens of micro-batches that a rank's stage holds at once; 0 without work."""
    if plan.position(rank) is None:
        return 0
    replica = next(replica for replica in plan.replicas if rank in replica.ranks)
    tokens = [int(plan.lengths[ids].sum()) for ids in replica.micro_batches]
    held = most = 0
    for instruction in plan.instructions(rank):
        match instruction:
            case Forward(micro_batch):
                held += tokens[micro_batch]
                most = max(most, held)
            case Backward(micro_batch):
                held -= tokens[micro_batch]
    return most
