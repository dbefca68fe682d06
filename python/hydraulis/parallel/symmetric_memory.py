"""Collectives of tensor parallelism through symmetric memory: ranks copy into and from each other's buffers.

Each rank of a tensor group has a buffer that all ranks of the group have mapped. A collective is a few copies
between devices and one barrier, so the multiprocessors stay free for computation; a kernel of NCCL waits on
as many of them as it has channels. Sums run as on the plain path in deterministic runs
(`parallel/collectives.py`), so they are bit-reproducible.

**Rounds.** A buffer has a fixed size: plans count it, and no step waits for a larger one. A collective of
more bytes takes several rounds of tokens. A buffer has two halves, and rounds use them in turn, with one
barrier each. A rank writes to a half again two rounds later. The barrier between comes after every rank's
reads of that half. All ranks of a group launch the same rounds in one order, on the stream of computation.

**Loss of a rank.** The barrier is a kernel that waits for the other ranks without an end. The host does not
wait for it, but polls and ends the process (`runtime/ranks/host_wait.py`). Until then the buffers stay
mapped, in torch's table of workspaces, because unmapping would wait for the device.

Legend: T tokens of the packed micro-batch, t = T/W tokens of this rank, c tokens of a round, H hidden, W
ranks of the group.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.errors import InvalidInputError
from hydraulis.text.values import MIB

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _SymmetricMemory

BUFFER_BYTES = 64 * MIB
"""Size of a buffer: each half takes 4,096 tokens of width 4,096 in bfloat16."""

ALLOCATED_BYTES = BUFFER_BYTES + 2 * MIB
"""Device memory of a buffer and its signals, in pages of 2 MiB (`CUDASymmetricMemoryAllocator::alloc`)."""


class SymmetricBuffer:
    """The buffers of a tensor group, as one of its ranks has mapped them.

    Args:
        buffers: The buffer of each rank, in rank order: bytes, equally many.
        rank: This rank's place in the group.
        barrier: Function that makes later work of the current stream wait until all ranks have reached it.
    """

    def __init__(self, buffers: Sequence[Tensor], rank: int, barrier: Callable[[], None]) -> None:
        self._halves = [buffer.chunk(2) for buffer in buffers]
        self._rank = rank
        self._barrier = barrier
        self._num_rounds = 0
        # Each rank starts with its own buffer and its neighbour's, so that no buffer serves all at once.
        self._peers = [(rank + step) % len(buffers) for step in range(len(buffers))]

    def all_gather(self, x_tH: Tensor) -> Tensor:
        """Concatenate the tokens of all ranks to x_TH, in rank order.

        Args:
            x_tH: Tokens of this rank; t is the same on all ranks.
        """
        num_ranks = len(self._peers)
        x_WtH = x_tH.new_empty(num_ranks, *x_tH.shape)
        for tokens, half in self._rounds(x_tH, 1):
            own_cH = x_tH[tokens]
            self._view(self._rank, half, own_cH.shape, x_tH.dtype).copy_(own_cH)
            self._barrier()
            for peer in self._peers:
                x_WtH[peer, tokens].copy_(self._view(peer, half, own_cH.shape, x_tH.dtype))
        return x_WtH.flatten(0, 1)

    def reduce_scatter(self, x_TH: Tensor, add_up: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum x_TH over all ranks and return this rank's tokens, x_tH.

        Args:
            x_TH: Addend of this rank for all T tokens; T is a multiple of the number of ranks.
            add_up: Function that sums addends [W, c, H] of all ranks over the first dimension.
        """
        x_WtH = x_TH.unflatten(0, (len(self._peers), -1))
        sum_tH = torch.empty_like(x_WtH[0], memory_format=torch.contiguous_format)
        for tokens, half in self._rounds(sum_tH, len(self._peers)):
            shape = x_WtH[:, tokens].shape
            for peer in self._peers:
                self._view(peer, half, shape, x_TH.dtype)[self._rank].copy_(x_WtH[peer, tokens])
            self._barrier()
            sum_tH[tokens].copy_(add_up(self._view(self._rank, half, shape, x_TH.dtype)))
        return sum_tH

    def _rounds(self, x_tH: Tensor, addends: int) -> Iterator[tuple[slice, int]]:
        """Yield the tokens of each round and the half that it uses.

        Args:
            x_tH: Tensor with the tokens of one rank.
            addends: Ranks whose tokens a half takes in one round.
        """
        row_bytes = math.prod(x_tH.shape[1:]) * x_tH.itemsize
        size = self._halves[0][0].numel() // (addends * row_bytes)
        if size == 0:
            message = (
                f"a token of {addends} x {row_bytes} bytes is larger than half of a symmetric buffer of "
                f"{2 * self._halves[0][0].numel()} bytes; set train.symmetric_memory = false"
            )
            raise InvalidInputError(message, code="scheme_model_mismatch")
        for start in range(0, len(x_tH), size):
            yield slice(start, min(start + size, len(x_tH))), self._num_rounds % 2
            self._num_rounds += 1

    def _view(self, rank: int, half: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        return self._halves[rank][half][:size].view(dtype).view(shape)


def map_buffers(group: dist.ProcessGroup) -> SymmetricBuffer:
    """Allocate this rank's buffer on its device, and map those of the group. Collective over the group.

    The hosts of the group wait for each other and for their devices, so nothing may be in flight.

    Args:
        group: Group whose ranks are on one node.
    """
    # Imported here, since only runs that ask for it need it.
    from torch.distributed._symmetric_memory import get_symm_mem_workspace

    memory: _SymmetricMemory = get_symm_mem_workspace(group.group_name, BUFFER_BYTES)
    buffers = [memory.get_buffer(rank, (BUFFER_BYTES,), torch.uint8) for rank in range(group.size())]
    return SymmetricBuffer(buffers, group.rank(), memory.barrier)


def require_symmetric_memory(device: torch.device, ranks_per_node: int) -> None:
    """Refuse a device that does not reach the memory of the node's other devices.

    Args:
        device: Device of this rank.
        ranks_per_node: Ranks of a node.

    Raises:
        InvalidInputError: The device is the CPU, or one of the node's devices cannot be mapped (code
            `device_missing`).
    """
    cause = _missing(device, ranks_per_node)
    if cause:
        message = (
            f"train.symmetric_memory = true needs CUDA devices that reach each other's memory, and {cause}; "
            "set train.symmetric_memory = false"
        )
        raise InvalidInputError(message, code="device_missing")


def _missing(device: torch.device, ranks_per_node: int) -> str:
    if device.type != "cuda":
        return "the ranks' device is the CPU"
    devices = range(min(ranks_per_node, torch.cuda.device_count()))
    for peer in devices:
        if peer != device.index and not torch.cuda.can_device_access_peer(device, peer):
            return f"device {device.index} does not reach device {peer} of this node"
    return ""
