"""Workers of test_warm_up.py."""

from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import numpy as np
import torch
import torch.distributed as dist

from hydraulis._core import Plan, SendReceive
from hydraulis.runtime import worker as worker_module
from hydraulis.runtime.pipeline.rank_work import neighbours
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.warm_up import warm_up
from hydraulis.runtime.step import train_step
from runtime.tiny import make_worker, plan_for


class Warmed(NamedTuple):
    """A rank that trained under several strategies.

    Attributes:
        losses: Of each step.
        forwards: Computations of each stage when it was warmed up.
        is_unchanged: Whether parameters stayed and gradients were zero after each warm-up.
        in_flight: Exchanges of buckets at that time.
        messages: Messages that each stage packed then, and those that it sends for each micro-batch.
    """

    losses: list[float]
    forwards: list[int]
    is_unchanged: list[bool]
    in_flight: int
    messages: list[tuple[int, int]]


def train(strategies: list[str], lengths: list[int], kind: str) -> Warmed:
    """Train a step under each strategy.

    Args:
        strategies: One after another.
        lengths: Lengths of each batch.
        kind: `warm` or `cold`, which leaves the warm-up out.
    """
    forwards: list[int] = []
    is_unchanged: list[bool] = []
    messages: list[tuple[int, int]] = []
    in_flight = 0

    def warming(stage: Stage) -> None:
        nonlocal in_flight
        worker.local_shard.gradient.fill_(3.0)
        before = worker.local_shard.parameter.clone()
        calls = 0
        forward = stage.forward

        def counting(*args: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return forward(*args)

        pack = Mock(side_effect=stage.messages.pack)
        with patch.object(stage, "forward", counting), patch.object(stage.messages, "pack", pack):
            if kind == "warm":
                warm_up(stage)
        forwards.append(calls)
        messages.append((pack.call_count, 2 - stage.is_first - stage.is_last))
        same = torch.equal(worker.local_shard.parameter, before)
        gradients = [one.grad for one in stage.trained.values() if one.grad is not None]
        is_unchanged.append(same and len(gradients) > 0 and not any(one.any() for one in gradients))
        in_flight += len(worker.redistribution._gather._in_flight)

    losses = []
    with patch.object(worker_module, "warm_up", warming):
        worker = make_worker(strategies)
        # Memory as it may be when it was never written.
        worker.local_shard.parameter.fill_(torch.inf)
        for strategy in strategies:
            plan = plan_for(dist.get_world_size(), strategy, lengths)
            tokens = [np.full(length, length % 7) for length in lengths]
            losses.append(train_step(worker, plan, tokens.__getitem__).loss)
    return Warmed(losses, forwards, is_unchanged, in_flight, messages)


def connected_pairs(strategy: str, lengths: list[int]) -> tuple[set[tuple[int, int]], set[int]]:
    """Return the pairs that are connected before a step, and the peers of this rank's messages."""
    plan: Plan = plan_for(dist.get_world_size(), strategy, lengths)
    connected: set[tuple[int, int]] = set()
    worker = make_worker([strategy])
    with patch.object(worker.groups, "connect", connected.update):
        worker.prepare(plan, lambda sequence: np.zeros(lengths[sequence], dtype=np.int64))
    assert connected == set(neighbours(plan))
    instructions = plan.instructions(dist.get_rank())
    return connected, {one.peer for one in instructions if isinstance(one, SendReceive)}
