"""Workers of test_sharded_optimizer.py."""

from collections.abc import Sequence
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.runtime.state import update_rule
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
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
        # So small that loops have several leaves.
        with mock.patch.object(update_rule, "_LOOP_LEAF", 1_000):
            shard = _shard(config, len(factors))
        norms, rates = [], []
        for factor in factors:
            shard.gradient.copy_(factor * shard.master)
            update = step(shard)
            norms.append(update.gradient_norm)
            rates.append(update.learning_rate)
        results.append(Stepped(gather(shard, shard.master), norms, rates))
    return results


def continue_all(configs: Sequence[OptimizerConfig]) -> list[bool]:
    """Make a step on a shard and on its copy after two steps; give whether they are the same to the bit."""
    return [_continues(config) for config in configs]


def _continues(config: OptimizerConfig) -> bool:
    shard, copy = _shard(config, 3), _shard(config, 3)
    for _ in range(2):
        shard.gradient.copy_(2 * shard.master)
        step(shard)
    for name, buffer in shard.buffers().items():
        copy.buffers()[name].flat.copy_(buffer.flat)
    copy.optimizer.resume(2)
    gradient = 3 * shard.master
    for one in (shard, copy):
        one.gradient.copy_(gradient)
        step(one)
    pairs = zip(shard.buffers().values(), copy.buffers().values(), strict=True)
    return all(torch.equal(one.flat, other.flat) for one, other in pairs)


def _shard(config: OptimizerConfig, steps: int) -> OptimizerShard:
    parameters = ModelParameters.from_config(small_config(**FAMILIES["every bias"]))
    return OptimizerShard(
        parameters, config, torch.float64, InitialValues(parameters, SEED, torch.float64), steps
    )
