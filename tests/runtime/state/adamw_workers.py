"""Workers of test_adamw.py."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.errors import HydraulisError
from hydraulis.runtime.state.initial_values import InitialValues
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.parameters import ModelParameters
from runtime.gathered import gather
from runtime.stepped import step
from runtime.tiny import SEED
from small_model import FAMILIES, small_config


class Stepped(NamedTuple):
    """Whole parameters on rank 0 after the last step; each step's norm and rate on every rank."""

    parameters: dict[str, Tensor] | None
    norms: list[float]
    rates: list[float]


def step_all(configs: Sequence[OptimizerConfig], factors: Sequence[float]) -> list[Stepped]:
    """Update with each of the settings; a step's gradient is the parameters times its factor."""
    results = []
    for config in configs:
        shard = _shard(config, len(factors))
        norms, rates = [], []
        for factor in factors:
            shard.gradient.copy_(factor * shard.master)
            update = step(shard)
            norms.append(update.gradient_norm)
            rates.append(update.learning_rate)
        results.append(Stepped(gather(shard, shard.master), norms, rates))
    return results


def diverge() -> tuple[str, str, bool]:
    """Meet an infinite gradient on the last rank alone; give the refusal, and whether nothing changed."""
    shard = _shard(OptimizerConfig(), 1)
    before = shard.master.clone()
    if dist.get_rank() == 1:
        shard.gradient[-1] = torch.inf
    try:
        step(shard)
    except HydraulisError as error:
        return error.code, str(error), torch.equal(shard.master, before)
    return "", "", False


def _shard(config: OptimizerConfig, steps: int) -> OptimizerShard:
    parameters = ModelParameters.from_config(small_config(**FAMILIES["every bias"]))
    return OptimizerShard(
        parameters, config, torch.float64, InitialValues(parameters, SEED, torch.float64), steps
    )
