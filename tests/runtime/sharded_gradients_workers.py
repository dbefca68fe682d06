"""Functions that the ranks of test_sharded_gradients.py run."""

from collections.abc import Sequence

import torch

from hydraulis.config.kinds import GradientKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from runtime.measure_workers import memory_of_plans
from runtime.worker_workers import Batch, Step, train

KINDS: tuple[GradientKind, ...] = ("whole", "sharded", "sharded")


def trained_by_kind(
    config: ModelConfig, optimizer: OptimizerConfig, steps: Sequence[tuple[str, Batch]]
) -> list[list[Step] | None]:
    """Train once for each of `KINDS`."""
    return [train(config, optimizer, torch.float64, steps, gradients=kind) for kind in KINDS]


def memory_by_kind(strategies: Sequence[str], layers: int) -> list[dict[str, list[tuple[int, int]]]]:
    """Return predicted and held bytes of each rank under whole and under sharded gradients, on rank 0."""
    return [memory_of_plans(strategies, gradients=kind, num_hidden_layers=layers) for kind in KINDS[:2]]
