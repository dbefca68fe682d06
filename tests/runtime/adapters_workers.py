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
from hydraulis.model.init import draw_elements
from hydraulis.model.parameters import is_adapter_output
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.tiny import train_config
from runtime.worker_workers import SEED, Batch, Step, _step, caps_of, with_sharding


@dataclass(frozen=True)
class Values:
    """Initial values, but a B is other than zero, because A has no gradient where B is zero."""

    parameters: ModelParameters

    def read(self, name: str, start: int, end: int) -> Tensor:
        drawn, seed = name, SEED
        if is_adapter_output(name):
            drawn, seed = name.replace("lora_B", "lora_A"), SEED + 1
        return draw_elements(drawn, start, end, self.parameters.config, seed).double()

    def whole(self, name: str) -> Tensor:
        """Return a whole parameter."""
        value = self.read(name, 0, self.parameters.shapes[name].numel())
        return self.parameters.view(value, name).contiguous()


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
