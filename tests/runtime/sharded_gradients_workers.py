"""Functions that the ranks of test_sharded_gradients.py run."""

from collections.abc import Sequence

import torch

from hydraulis.config.kinds import GradientKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from runtime.measure_workers import memory_of_plans
from runtime.tiny import make_worker
from runtime.worker_workers import Batch, Step, train
from small_model import small_config

KINDS: tuple[GradientKind, ...] = ("whole", "sharded", "sharded")


def trained_by_kind(
    config: ModelConfig, optimizer: OptimizerConfig, steps: Sequence[tuple[str, Batch]]
) -> list[list[Step] | None]:
    """Train once for each of `KINDS`."""
    return [train(config, optimizer, torch.float64, steps, gradients=kind) for kind in KINDS]


def memory_by_kind(strategies: Sequence[str], layers: int) -> list[dict[str, list[tuple[int, int]]]]:
    """Return predicted and held bytes of each rank under whole and under sharded gradients, on rank 0."""
    return [memory_of_plans(strategies, gradients=kind, num_hidden_layers=layers) for kind in KINDS[:2]]


def persistent_by_kind(strategies: Sequence[str], layers: int) -> list[int]:
    """Return the bytes of this rank's persistent tensors under whole and under sharded gradients."""
    config = small_config(vocab_size=256, num_hidden_layers=layers)
    workers = (
        make_worker(strategies, config=config, dtype=torch.float32, gradients=kind) for kind in KINDS[:2]
    )
    return [sum(tensor.nbytes for tensor in worker.persistent) for worker in workers]
