"""Workers of test_optimizer_shard.py."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
from runtime.gathered import gather
from runtime.stepped import step
from runtime.tiny import OPTIMIZER, SEED
from small_model import small_config


class ShardReport(NamedTuple):
    """What one rank saw; whole parameters on rank 0 alone."""

    share: int
    layout: list[int]
    initial: dict[str, Tensor] | None
    gradient: dict[str, Tensor] | None
    stepped: list[dict[str, Tensor] | None]


def gather_and_step(dtype: torch.dtype, num_steps: int) -> ShardReport:
    """Gather the initial values, a gradient of twice those values, and what each step makes of it."""
    parameters = ModelParameters.from_config(small_config())
    shard = OptimizerShard(parameters, OPTIMIZER, dtype, InitialValues(parameters, SEED, dtype), num_steps)
    initial = gather(shard, shard.master)
    shard.gradient.copy_(2 * shard.master)
    gradient = gather(shard, shard.gradient)
    stepped = []
    for _ in range(num_steps):
        step(shard)
        stepped.append(gather(shard, shard.master))
    assert shard.master.numel() == shard.gradient.numel()
    layout = [
        sum(held.end - held.start for held in shard.layout.slices(rank))
        for rank in range(dist.get_world_size())
    ]
    return ShardReport(shard.master.numel(), layout, initial, gradient, stepped)


def master_dtypes() -> list[torch.dtype]:
    parameters = ModelParameters.from_config(small_config())
    dtypes = (torch.bfloat16, torch.float32, torch.float64)
    return [
        OptimizerShard(parameters, OPTIMIZER, dtype, InitialValues(parameters, SEED, dtype), 1).master.dtype
        for dtype in dtypes
    ]
