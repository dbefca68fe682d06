"""Workers of test_growth.py."""

import gc
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.step import train_step
from runtime.tiny import make_worker, plan_for
from small_model import small_config

VOCABULARY = small_config().vocab_size


class Resources(NamedTuple):
    """The resources of a process.

    Attributes:
        memory: Resident memory in bytes.
        files: Open files.
        threads: Threads.
        groups: Process groups.
        tensors: Tensors that Python objects hold.
    """

    memory: int
    files: int
    threads: int
    groups: int
    tensors: int


def train(strategies: list[str], rounds: int) -> list[Resources]:
    """Train a step under each strategy in each round, with other lengths each time.

    Returns:
        The resources after each round.
    """
    worker = make_worker(strategies)
    drawn = np.random.default_rng(5)
    found = []
    for _ in range(rounds):
        for strategy in strategies:
            lengths = drawn.integers(2, 32, 6).tolist()
            plan = plan_for(dist.get_world_size(), strategy, lengths)
            tokens = [drawn.integers(VOCABULARY, size=length) for length in lengths]
            train_step(worker, plan, tokens.__getitem__)
        found.append(resources())
    return found


def resources() -> Resources:
    """Return the resources of this process."""
    gc.collect()
    process = Path("/proc/self")
    pages = int((process / "statm").read_text().split()[1])
    files, threads = (len(list((process / name).iterdir())) for name in ("fd", "task"))
    # By type: isinstance() would ask deprecated things of torch for their class, and they warn.
    tensors = sum(issubclass(type(one), Tensor) for one in gc.get_objects())
    groups = len(dist.distributed_c10d._world.pg_map)
    return Resources(pages * os.sysconf("SC_PAGE_SIZE"), files, threads, groups, tensors)
