"""Workers of the tests of the local shard: training steps under one strategy after another."""

from typing import NamedTuple

import numpy as np
import torch.distributed as dist

from hydraulis.runtime.step import train_step
from runtime.tiny import make_worker, plan_for


class Held(NamedTuple):
    """What a rank held in a step.

    Attributes:
        scheme: The rank's scheme; empty without work.
        bytes: Bytes of parameters and gradients.
        of_scheme: Bytes that the scheme takes; 0 without work.
    """

    scheme: str
    bytes: int
    of_scheme: int


def held_in_steps(strategies: list[str], lengths: list[int]) -> list[Held]:
    """Train a step under each strategy, and return what this rank held in each."""
    worker, rank = make_worker(strategies), dist.get_rank()
    tokens = [np.full(length, length % 7) for length in lengths]
    held = []
    for strategy in strategies:
        plan = plan_for(dist.get_world_size(), strategy, lengths)
        train_step(worker, plan, tokens.__getitem__)
        shard, position = worker.local_shard, plan.position(rank)
        held.append(
            Held(
                "" if position is None else str(position.scheme),
                shard.parameter.untyped_storage().nbytes() + shard.gradient.untyped_storage().nbytes(),
                0 if position is None else shard.bytes_of(position.scheme),
            )
        )
    return held
