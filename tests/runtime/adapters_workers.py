"""Workers of test_adapters.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Strategy
from hydraulis.config.kinds import ContextKind, ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.model.init import initial_value
from hydraulis.model.parameters import is_adapter_output
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.tiny import train_config
from runtime.worker_workers import SEED, Batch, Step, _step, caps_of, with_sharding


def value_of(name: str, shape: Sequence[int], config: ModelConfig) -> Tensor:
    """Draw a parameter; a B is other than zero, because A has no gradient where B is zero."""
    if is_adapter_output(name):
        return initial_value(name.replace("lora_B", "lora_A"), shape, config, SEED + 1, torch.float64)
    return initial_value(name, shape, config, SEED, torch.float64)


@dataclass(frozen=True)
class Values:
    """Values of `value_of`, which a worker reads."""

    parameters: ModelParameters

    def read(self, name: str, start: int, end: int) -> Tensor:
        shape, config = self.parameters.shapes[name], self.parameters.config
        return self.parameters.canonical(value_of(name, shape, config), name)[start:end]


def train_adapters(
    config: ModelConfig,
    optimizer: OptimizerConfig,
    steps: Sequence[tuple[str, Batch]],
    context: ContextKind,
    sharding: ShardingKind = "none",
) -> tuple[list[Step], list[int]] | None:
    """Run each batch under its strategy; rank 0 returns the steps and each one's gradient elements."""
    schemes = {scheme for strategy, _ in steps for scheme in Strategy(strategy).schemes}
    settings = train_config(dtype=torch.float64, seed=SEED, sharding=sharding)
    values = Values(ModelParameters.from_config(config))
    worker = Worker(config, optimizer, settings, schemes=sorted(schemes), values=values)
    profile = with_sharding(with_schemes(made_up_profile(caps_of(worker), context), worker.schemes), sharding)
    records, elements = [], []
    for strategy, batch in steps:
        records.append(_step(worker, profile, strategy, batch))
        elements.append(worker.local_shard.gradient.numel())
    return (records, elements) if dist.get_rank() == 0 else None
