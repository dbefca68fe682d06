"""Most bytes of a rank in an iteration: read from CUDA's allocator, or counted tensor by tensor."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydraulis._core import Backward, Forward, Plan, Position
from hydraulis.parallel.offload import HostCopies

if TYPE_CHECKING:
    from hydraulis.runtime.memory.saved_activations import SavedActivations


class IterationMemory:
    """Measures the most bytes of a rank in an iteration.

    CUDA's allocator knows them. On the CPU tensors are counted: the persistent ones, which are local shard,
    optimizer shard and staging, and those that micro-batches save for backward. Counting the latter takes
    time while they run, so it happens only in iterations in which the rank has more tokens in flight than
    ever before at the same position. The iteration with the most bytes of a run is always among them.

    Args:
        device: Device of the rank.

    Attributes:
        saved: Counter of the activations saved for backward in this iteration; None if they are not counted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counted: dict[Position, int] = {}
        self._most_before = 0
        self.saved: SavedActivations | None = None

    def start(
        self,
        persistent: Iterable[Tensor] = (),
        position: Position | None = None,
        tokens: int = 0,
        copies: HostCopies | None = None,
    ) -> None:
        """Start measuring an iteration.

        Args:
            persistent: Persistent tensors of the rank.
            position: Position of the rank in the iteration; None without work.
            tokens: Most tokens of the rank's micro-batches in flight.
            copies: Activations of the rank in host memory; None if no layer offloads.
        """
        self.saved = None
        if copies is not None:
            copies.reset()
        if self._device.type == "cuda":
            self._most_before = self.most_of_all()
            torch.cuda.reset_peak_memory_stats(self._device)
        elif position is not None and tokens > self._counted.get(position, 0):
            self._counted[position] = tokens
            self.saved = _saved_activations(persistent, copies)

    def most_bytes(self, persistent: Iterable[Tensor]) -> int:
        """Return the most bytes at once since `start`; on the CPU those of the persistent tensors alone.

        Args:
            persistent: Persistent tensors of the rank, each with a storage of its own.
        """
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return sum(tensor.nbytes for tensor in persistent)

    def most_of_all(self) -> int:
        """Return the most bytes of tensors on a CUDA device so far, in and between iterations."""
        return max(self._most_before, int(torch.cuda.max_memory_allocated(self._device)))

    def peak_bytes(self, persistent: Iterable[Tensor]) -> int | None:
        """Return the most bytes with the saved activations; None if those were not counted."""
        if self._device.type == "cuda":
            return self.most_bytes(persistent)
        return None if self.saved is None else self.most_bytes(persistent) + self.saved.total_bytes


def _saved_activations(persistent: Iterable[Tensor], copies: HostCopies | None) -> "SavedActivations | None":
    """Create the counter; None where torch lacks the undocumented module that it needs."""
    try:
        from hydraulis.runtime.memory.saved_activations import SavedActivations
    except ImportError:
        return None
    return SavedActivations(persistent, copies)


def tokens_in_flight(plan: Plan, rank: int) -> int:
    """Return the most tokens of micro-batches between forward and backward on a rank; 0 without work."""
    if plan.position(rank) is None:
        return 0
    replica = next(replica for replica in plan.replicas if rank in replica.ranks)
    tokens = [int(plan.lengths[ids].sum()) for ids in replica.micro_batches]
    in_flight = most = 0
    for instruction in plan.instructions(rank):
        match instruction:
            case Forward(micro_batch):
                in_flight += tokens[micro_batch]
                most = max(most, in_flight)
            case Backward(micro_batch):
                in_flight -= tokens[micro_batch]
    return most
