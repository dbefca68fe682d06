"""Optimizer shards of all ranks, put together."""

from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.state.optimizer_shard import FROZEN, OptimizerShard, ShardBuffer, elements_of


def gather(shard: OptimizerShard, flat: Tensor) -> dict[str, Tensor] | None:
    """Put a flat buffer of all ranks (`master`, `gradient` or a moment) together on rank 0. Collective.

    The frozen parameters come with `master`, in its dtype.

    Returns:
        Whole parameters by name on the CPU of rank 0, None elsewhere.
    """
    buffers = [ShardBuffer(flat, shard.trained_slices)]
    if flat is shard.master and FROZEN in shard.buffers():
        buffers.append(shard.buffers()[FROZEN])
    # Copied, because a pickled view takes the whole buffer with it.
    values_of_slices = [
        (piece.parameter, piece.start, _copied(buffer.flat[elements_of(piece, buffer.first)]))
        for buffer in buffers
        for piece in buffer.slices
    ]
    gathered: list[list[tuple[int, int, Tensor]]] = [[]] * dist.get_world_size()
    dist.gather_object(values_of_slices, gathered if dist.get_rank() == 0 else None)
    if dist.get_rank() > 0:
        return None
    parameters = shard.parameters
    whole: dict[str, Tensor] = {}
    for parameter, start, values in chain.from_iterable(gathered):
        name = parameters.names[parameter]
        flat_shape = parameters.shapes[name].numel()
        whole.setdefault(name, torch.empty(flat_shape, dtype=flat.dtype))[start : start + len(values)] = (
            values
        )
    return {name: parameters.view(values, name).contiguous() for name, values in whole.items()}


def _copied(values: Tensor) -> Tensor:
    return values.detach().to("cpu", copy=True)
