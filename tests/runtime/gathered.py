"""Home buffers of all ranks, put together."""

from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.state.optimizer_shard import HomeShare


def gather(share: HomeShare, flat: Tensor) -> dict[str, Tensor] | None:
    """Put a home buffer of all ranks (`master`, `gradient` or a moment) together on rank 0. Collective.

    Returns:
        Whole parameters by name on the CPU of rank 0, None elsewhere.
    """
    # Copied, because a pickled view takes the whole buffer with it.
    shares = [
        (held.parameter, held.start, _copied(flat[held.offset : held.offset + held.end - held.start]))
        for held in share.slices
    ]
    gathered: list[list[tuple[int, int, Tensor]]] = [[]] * dist.get_world_size()
    dist.gather_object(shares, gathered if dist.get_rank() == 0 else None)
    if dist.get_rank() > 0:
        return None
    parameters = share.parameters
    whole = {name: torch.empty(shape.numel(), dtype=flat.dtype) for name, shape in parameters.shapes.items()}
    for parameter, start, values in chain.from_iterable(gathered):
        whole[parameters.names[parameter]][start : start + len(values)] = values
    return {name: parameters.view(values, name).contiguous() for name, values in whole.items()}


def _copied(values: Tensor) -> Tensor:
    return values.detach().to("cpu", copy=True)
