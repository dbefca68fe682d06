"""A tiny decoder, a corpus of made-up documents and plans for any strategy, for the tests of the runtime."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hydraulis import Cluster, Plan, Strategy
from hydraulis.config.kinds import MemoryRule, ShardingKind
from hydraulis.config.layered.table import from_table
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.planner import PlannerConfig
from hydraulis.config.run import RunConfig
from hydraulis.config.train import TrainConfig
from hydraulis.data.corpus import Corpus
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from small_model import small_config

SEED = 3
CAPS = {
    "<1,selective>": 32,
    "<1,full>": 32,
    "<tp2,full>": 64,
    "<1>": 32,
    "<tp2>": 64,
    "<pp2>": 32,
    "<pp3>": 32,
    "<tp2,pp2>": 64,
    "<tp4>": 96,
    "<cp2>": 64,
}
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=4, weight_decay=0.1, no_decay=(), clip_norm=0)


def planner_for(
    world_size: int, strategies: Sequence[str], memory: MemoryRule = "per_micro_batch"
) -> RunPlanner:
    config = PlannerConfig(strategies=tuple(strategies), memory_mib=1, memory=memory)
    return RunPlanner(config, made_up_profile(CAPS), Cluster(gpus=world_size, gpus_per_node=8))


def plan_for(
    world_size: int, strategy: str, lengths: Sequence[int], memory: MemoryRule = "per_micro_batch"
) -> Plan:
    targets = [length - 1 for length in lengths]
    return planner_for(world_size, [strategy], memory).plan(lengths, targets)


def make_worker(
    strategies: Sequence[str],
    *,
    config: ModelConfig | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = SEED,
    sharding: ShardingKind = "none",
    frozen: tuple[str, ...] = (),
) -> Worker:
    schemes = {scheme for strategy in strategies for scheme in Strategy(strategy).schemes}
    settings = train_config(seed=seed, dtype=dtype, sharding=sharding, frozen=frozen)
    return Worker(config or small_config(), OPTIMIZER, settings, schemes=sorted(schemes))


def train_config(*, dtype: torch.dtype, steps: int = 1, **settings: Any) -> TrainConfig:
    """Give the settings of a worker with torch's operations, whose groups wait for a minute at most."""
    name: Any = str(dtype).removeprefix("torch.")
    return TrainConfig(**{"steps": steps, "dtype": name, "timeout_s": 60.0, "compile": False, **settings})


def made_up_corpus(vocab_size: int, *, longest: int = 64) -> Corpus:
    """Make 40 documents; one of them has `longest` tokens, most have a few."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.0, 0.8, 40), 2, longest).astype(np.int64)
    lengths[7] = longest
    return Corpus(
        token_T=rng.integers(vocab_size, size=lengths.sum()).astype(np.uint8),
        offset=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        left_out={"files": 2},
    )


def run_config(steps: int, strategies: Sequence[str], **optimizer: Any) -> RunConfig:
    tables = {
        "model": {
            "vocab_size": 256,
            "hidden_size": 16,
            "intermediate_size": 20,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        "data": {"tokens_per_batch": 120},
        "train": {"steps": steps, "seed": SEED, "timeout_s": 60.0},
        "optimizer": {"learning_rate": 1e-2} | optimizer,
        "planner": {"strategies": list(strategies), "memory_mib": 1},
        "output": {"directory": "nowhere"},
    }
    return from_table(RunConfig, tables, "")
