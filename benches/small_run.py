"""The run of benches on the CPU: the demo's model, on the interpreter's own standard library."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from hydraulis._core import CostProfile
from hydraulis.config.layered.table import from_table
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.runtime.worker import Worker
from hydraulis.train.run_data import load_data

LOSS_TOLERANCE = 1e-3
"""Largest relative difference between the losses of two ways to train the same model on the same tokens."""


def run_config(arguments: argparse.Namespace, strategies: Sequence[str], **planner: object) -> RunConfig:
    """Describe the run.

    Args:
        arguments: Options of the bench: `steps`, `tokens`, `longest`, `hidden`.
        strategies: Strategies of the run.
        **planner: Further keys of the section `planner`.
    """
    tables = {
        "model": {
            "vocab_size": 256,
            "hidden_size": arguments.hidden,
            "intermediate_size": 43 * arguments.hidden // 16,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "initializer_range": arguments.hidden**-0.5,
        },
        "data": {
            "max_tokens": arguments.longest,
            "too_long": "truncate",
            "tokens_per_batch": arguments.tokens,
        },
        "train": {"steps": arguments.steps, "device": "cpu"},
        "optimizer": {"learning_rate": 1e-3},
        "planner": {"strategies": list(strategies), "memory_mib": 1024, **planner},
        "output": {"directory": "nowhere"},
    }
    return from_table(RunConfig, tables, "")


def training_data(config: RunConfig) -> Dataset:
    """Load the data of the run. Collective."""
    data = load_data(config.data, lambda _: None, lambda: False)
    assert data is not None
    return data.train


def measured_profile(
    config: RunConfig, worker: Worker, micro_batch_tokens: int, seconds: float
) -> CostProfile:
    """Measure the schemes of a worker. Collective.

    Args:
        config: Configuration of the run.
        worker: This rank's worker.
        micro_batch_tokens: Most tokens of a measured micro-batch.
        seconds: Approximate duration of the measurement.
    """
    limits = MeasurementLimits(
        context=config.planner.context,
        memory_bytes=config.planner.memory_bytes,
        longest=config.data.max_tokens,
        micro_batch_tokens=micro_batch_tokens,
        seconds=seconds,
    )
    profile = measure_profile(worker, worker.schemes, limits, lambda _: None, lambda: False)
    assert profile is not None
    return profile


def add_options(options: argparse.ArgumentParser) -> None:
    """Declare the options that the benches share."""
    options.add_argument("--hidden", type=int, default=128, help="width of the model")
    options.add_argument("--profile-seconds", type=float, default=8.0)
    options.add_argument("--json", default="", metavar="FILE", help="write all figures there")
    options.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)


def start_ranks(module: str, number: int) -> int:
    """Start the ranks of a bench with the options of this process, and wait for their end.

    Args:
        module: Name of the bench's module.
        number: Number of ranks, of one thread each, because they share the cores.

    Returns:
        The exit code.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    ranks = [f"--nproc-per-node={number}", "--module", module, "--as-rank", *sys.argv[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run([*launcher, *ranks], env=environment, check=False).returncode
