"""Workers of the tests of the local shard: its buffers in steps of several strategies, and alone."""

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hydraulis import Scheme
from hydraulis.runtime.memory.device_memory import DeviceMemory
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.step import train_step
from ranks import own_device
from runtime.tiny import make_worker, plan_for
from small_model import small_config


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


def reserved_in_turns() -> tuple[int, int]:
    """Give buffers the size of a narrow scheme with few activations and of a wide one with many, in turn.

    Returns:
        The bytes of the narrow scheme's buffers, and those that the allocator has reserved.
    """
    config = small_config(
        vocab_size=8_192, hidden_size=1_024, intermediate_size=4_096, num_hidden_layers=16, head_dim=64
    )
    narrow, wide, device = Scheme("<1>"), Scheme("<tp2>"), own_device()
    before = DeviceMemory.read(device).reserved
    shard = LocalShard(ModelParameters.from_config(config), [narrow, wide], torch.bfloat16, device)
    room = shard.bytes_of(narrow) - shard.bytes_of(wide)
    for own in (narrow, wide) * 8:
        shard.fit(own, [own])
        number = 64 if own == wide else 1
        activations = [torch.empty(room // 64, dtype=torch.uint8, device=device) for _ in range(number)]
        del activations
    return shard.bytes_of(narrow), DeviceMemory.read(device).reserved - before
