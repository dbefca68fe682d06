"""The optimizer shard: the rank's part of master parameters, gradients and moments; it never moves.

`HostCopy` copies it into host memory between two steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydraulis._core import Cluster, OptimizerShards, Scheme, ShardSlice
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.tensors import empty_on_host, wide_dtype
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import SideStream, StreamEvent
from hydraulis.runtime.state.parameters import ModelParameters, ParameterValues
from hydraulis.runtime.state.sharded_optimizer import ShardedOptimizer, Update
from hydraulis.runtime.state.update_rule import DecaySpan

MASTER = "master"
FROZEN = "frozen"


class ShardBuffer(NamedTuple):
    """A flat buffer of an optimizer shard.

    Attributes:
        flat: All elements of the buffer.
        slices: Slices of the parameters in it.
        first: Offset of the buffer's first element in the order of the shard.
    """

    flat: Tensor
    slices: Sequence[ShardSlice]
    first: int = 0


@dataclass(frozen=True, slots=True)
class ShardPlacement:
    """Device of a shard, and the ranks among which the elements are distributed.

    Attributes:
        device: Device of this rank's shard.
        cluster: All ranks, whose nodes decide which rank owns an element; None for one node.
        schemes: Schemes of the run. Where one scheme's local shards are parts of every other scheme's, each
            element's owner is a rank that has it in its local shard.
    """

    device: torch.device = CPU
    cluster: Cluster | None = None
    schemes: Sequence[Scheme] = ()


class OptimizerShard:
    """The rank's part of the model's state.

    Each element has one owner. Trained parameters come first in the order of the shard; they have master
    parameters, gradients and moments, in at least float32 whatever dtype the model computes in. Frozen
    parameters follow in the model's dtype, as each rank computes with them, without gradients and moments.

    Attributes:
        parameters: The model's parameters.
        layout: Owner of each element of each parameter.
        slices: This rank's slices of the parameters, in the order of the shard.
        master: Flat master parameters of the trained parameters.
        frozen: Flat frozen parameters.
        gradient: Flat gradients of the trained parameters: the sum of all contributions once
            `Redistribution.finish_gradient_reduction` returns.
        optimizer: Optimizer, which updates the trained master parameters from the gradient.

    Args:
        parameters: The model's parameters.
        config: The optimizer and its settings.
        dtype: Dtype of the model.
        values: Initial values; only this rank's slices are read.
        num_steps: Steps of the whole run, for the schedule of the learning rate.
        placement: Device and ranks; the CPU of one node if left out.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        config: OptimizerConfig,
        dtype: torch.dtype,
        values: ParameterValues,
        num_steps: int,
        placement: ShardPlacement | None = None,
    ) -> None:
        placement = placement or ShardPlacement()
        cluster = placement.cluster or Cluster(dist.get_world_size(), dist.get_world_size())
        self.parameters = parameters
        self.layout = OptimizerShards(parameters.table, cluster, placement.schemes)
        self.slices = self.layout.slices(dist.get_rank())
        trained, frozen = self.layout.shard_elements(dist.get_rank())
        self.master = torch.empty(trained, dtype=wide_dtype(dtype), device=placement.device)
        self.frozen = torch.empty(frozen, dtype=dtype, device=placement.device)
        for buffer in (self._master_buffer, self._frozen_buffer):
            for piece in buffer.slices:
                name = parameters.names[piece.parameter]
                read = values.read(name, piece.start, piece.end)
                buffer.flat[elements_of(piece, buffer.first)] = read
        self.gradient = torch.zeros_like(self.master)
        spans = self._decay_spans(config.no_decay)
        self.optimizer = ShardedOptimizer(self.master, self.gradient, spans, config, num_steps)
        self._readers: list[StreamEvent] = []

    @property
    def trained_slices(self) -> Sequence[ShardSlice]:
        """The slices of trained parameters: those of the gradient and of each moment."""
        return [piece for piece in self.slices if self.parameters.trained[piece.parameter]]

    def step(self, norm: float, *, is_skipped: bool = False) -> Update:
        """Update the master parameters from the gradient (see `ShardedOptimizer.step`).

        Args:
            norm: Norm of the whole gradient, finite and the same on every rank.
            is_skipped: Whether the step counts, but changes nothing.
        """
        self.wait_for_readers()
        return self.optimizer.step(norm, is_skipped=is_skipped)

    def buffers(self) -> Mapping[str, ShardBuffer]:
        """Return the flat buffers of a checkpoint by name."""
        master = self._master_buffer
        moments = {name: master._replace(flat=moment) for name, moment in self.optimizer.moments.items()}
        frozen = {} if all(self.parameters.trained) else {FROZEN: self._frozen_buffer}
        return {MASTER: master, **frozen, **moments}

    def values_at(self, segments: NDArray[np.int64], *, trained: bool) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the buffer of some segments of the shard, and the segments in it.

        Args:
            segments: Offset in the order of the shard and number of elements of each segment, int64
                [segments, 2].
            trained: Whether they are those of trained parameters.
        """
        return (self.master, segments) if trained else (self.frozen, segments - (len(self.master), 0))

    def read_until(self, end: StreamEvent) -> None:
        """Keep steps from changing the buffers before this event: a side stream reads them until then."""
        self._readers.append(end)

    def wait_for_readers(self) -> None:
        """Wait for every reader on a side stream: on CUDA the current stream waits, not the host."""
        for end in self._readers:
            end.wait()
        self._readers.clear()

    @property
    def _master_buffer(self) -> ShardBuffer:
        return ShardBuffer(self.master, self.trained_slices)

    @property
    def _frozen_buffer(self) -> ShardBuffer:
        frozen = [piece for piece in self.slices if not self.parameters.trained[piece.parameter]]
        return ShardBuffer(self.frozen, frozen, len(self.master))

    def _decay_spans(self, no_decay: Sequence[str]) -> list[DecaySpan]:
        """Join neighbouring trained slices with the same weight decay."""
        spans: list[DecaySpan] = []
        for piece in self.trained_slices:
            name = checkpoint_name(self.parameters.names[piece.parameter])
            decayed = not any(fnmatchcase(name, pattern) for pattern in no_decay)
            end = elements_of(piece).stop
            if spans and spans[-1].decayed == decayed:
                spans[-1] = spans[-1]._replace(end=end)
            else:
                spans.append(DecaySpan(piece.offset, end, decayed))
        return spans


def elements_of(piece: ShardSlice, first: int = 0) -> slice:
    """Return the elements of a slice in a flat buffer whose first element has this offset in the shard."""
    start = piece.offset - first
    return slice(start, start + piece.end - piece.start)


class HostCopy:
    """Copies of parts of an optimizer shard's buffers in host memory.

    On CUDA the copy runs on a side stream into pinned memory, and the optimizer step waits for it. On the CPU
    the copy is complete at once.

    Each buffer takes one block of pinned memory, whose size torch rounds up to a power of two. Torch keeps
    the block until the process ends, for the next copy among others
    (`at::CachingHostAllocatorImpl::allocate` in ATen/core/CachingHostAllocator.h, torch 2.13). Its setting
    `pinned_max_round_threshold_mb` is no remedy: a free block is then taken without a look at its size. So
    the rounded sizes are counted (see `StateBytes.host_copy`). Tensors of a file have to be contiguous, so a
    buffer cannot be cut into blocks of such sizes.

    Args:
        shard: This rank's optimizer shard.
        flats: Flat tensors to copy, parts of the shard's buffers, by names of the caller.
        stream: Side stream of the copy.
    """

    def __init__(self, shard: OptimizerShard, flats: Mapping[str, Tensor], stream: SideStream) -> None:
        self._copies: dict[str, Tensor] = {}
        with stream.beside():
            for name, flat in flats.items():
                copy = empty_on_host(flat.shape, flat.dtype, is_pinned=flat.is_cuda)
                self._copies[name] = copy.copy_(flat.detach(), non_blocking=True)
            self._made = StreamEvent(shard.master.device)
        shard.read_until(self._made)

    def flats(self) -> Mapping[str, Tensor]:
        """Wait for the copies, and return them by their names; callable from any thread."""
        self._made.synchronize()
        return self._copies
