"""Copies of a rank's flat buffers in host memory, made between two steps."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hydraulis.runtime.ranks.streams import SideStream, StreamEvent
from hydraulis.runtime.state.optimizer_shard import OptimizerShard


class HostCopy:
    """Copies of parts of an optimizer shard's buffers in host memory.

    On CUDA the copy runs on a side stream into pinned memory, which torch reuses for the next copy; the
    optimizer step waits for it. On the CPU the copy is complete at once.

    Args:
        shard: This rank's optimizer shard.
        flats: Flat tensors to copy, parts of the shard's buffers, by names of the caller.
        stream: Side stream of the copy.
    """

    def __init__(self, shard: OptimizerShard, flats: Mapping[str, Tensor], stream: SideStream) -> None:
        self._copies: dict[str, Tensor] = {}
        with stream.beside():
            for name, flat in flats.items():
                copy = torch.empty_like(flat, device="cpu", pin_memory=flat.is_cuda)
                self._copies[name] = copy.copy_(flat.detach(), non_blocking=True)
            self._made = StreamEvent(shard.master.device)
        shard.read_until(self._made)

    def flats(self) -> Mapping[str, Tensor]:
        """Wait for the copies, and return them by their names; callable from any thread."""
        self._made.synchronize()
        return self._copies
