"""Workers of test_on_devices.py."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Strategy
from hydraulis.config.model import ModelConfig
from hydraulis.runtime.step import evaluate, train_step
from hydraulis.runtime.worker import Worker
from runtime.gathered import gather
from runtime.tiny import OPTIMIZER, SEED, plan_for, train_config


class Trained(NamedTuple):
    """What some iterations came to; parameters and gradients on rank 0 alone."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]
    parameters: dict[str, Tensor]
    evaluated: float


def train(
    device: str, config: ModelConfig, strategies: Sequence[str], lengths: Sequence[int], dtype: torch.dtype
) -> Trained:
    """Carry one batch out by each strategy in turn, a step each."""
    schemes = {scheme for text in strategies for scheme in Strategy(text).schemes}
    settings = train_config(dtype=dtype, seed=SEED, device=device)
    worker = Worker(config, OPTIMIZER, settings, schemes=sorted(schemes))
    assert worker.optimizer_shard.master.device.type == device

    def tokens(sequence: int) -> Any:
        rng = np.random.default_rng(sequence)
        return rng.integers(config.vocab_size, size=lengths[sequence]).astype(np.uint8)

    losses, gradients = [], []
    for strategy in strategies:
        plan = plan_for(dist.get_world_size(), strategy, lengths)
        losses.append(train_step(worker, plan, tokens).loss)
        gradients.append(gather(worker.optimizer_shard, worker.optimizer_shard.gradient) or {})
    evaluated = evaluate(worker, plan, tokens)
    return Trained(
        losses, gradients, gather(worker.optimizer_shard, worker.optimizer_shard.master) or {}, evaluated
    )
