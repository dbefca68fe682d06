"""Functions that the ranks of test_sharding.py run."""

from collections.abc import Sequence

import torch

from hydraulis import Scheme
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from runtime.tiny import make_worker
from runtime.worker_workers import Batch, Step, train
from small_model import small_config

KINDS: tuple[ShardingKind, ...] = ("none", "gradients", "gradients", "parameters", "parameters")


def trained_by_kind(
    config: ModelConfig, optimizer: OptimizerConfig, steps: Sequence[tuple[str, Batch]]
) -> list[list[Step] | None]:
    """Train once for each of `KINDS`."""
    return [train(config, optimizer, torch.float64, steps, sharding=kind) for kind in KINDS]


def persistent_by_kind(strategies: Sequence[str], layers: int) -> list[int]:
    """Return the bytes of this rank's persistent tensors under each kind of sharding."""
    config = small_config(vocab_size=256, num_hidden_layers=layers)
    kinds: tuple[ShardingKind, ...] = ("none", "gradients", "parameters")
    held = []
    for kind in kinds:
        worker = make_worker(strategies, config=config, dtype=torch.float32, sharding=kind)
        worker.fit_local_shard_alone(Scheme("<1>"))
        held.append(sum(tensor.nbytes for tensor in worker.persistent))
    return held
