"""When the hooks of a stage wait for parameters and start gradient reductions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from devices import one_rank
from hydraulis import Scheme, Strategy
from hydraulis._core import LayerSplit
from hydraulis.config.kinds import ShardingKind
from hydraulis.profile.bench import SchemeBench
from hydraulis.runtime.pipeline.timers import CudaTimers, step_timers
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.redistribute import plan_transfers
from hydraulis.runtime.redistribute.redistribution import Redistribution
from hydraulis.runtime.redistribute.sharded_redistribution import make_redistribution
from hydraulis.runtime.step import train_step
from runtime.redistribute.fake_exchange import FakeExchange, bucket, shards
from runtime.tiny import make_worker, plan_for

# The rank is the first of two stages with a layer each. It holds two elements of its layer, and nothing of
# the embedding, the second stage's layer and the head, whose sums it owns.
BUCKETS = [
    bucket([], [(2, 1)]),
    bucket([(0, 2)], [(0, 1), (0, 1)]),
    bucket([], [(1, 1)]),
    bucket([], [(3, 1)]),
]


class Block(nn.Module):
    """A block of one parameter, whose gradient is added up in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def hooked(block: Block, exchange: Any) -> tuple[Redistribution, Any]:
    """Make the redistribution of a stage of this block alone."""
    table = SimpleNamespace(parameters=[SimpleNamespace(layer_groups=[1])], split=LayerSplit(2))
    stage: Any = SimpleNamespace(trained={0: block.weight}, layer_groups=lambda: iter([(1, block)]))
    optimizer_shard, local_shard = shards(owned=4, local=2)
    optimizer_shard.parameters = SimpleNamespace(table=table, num_layer_groups=len(BUCKETS))
    optimizer_shard.layout = None
    moved = make_redistribution(exchange, optimizer_shard, local_shard, step_timers(CPU))
    moved.register_hooks(stage)
    return moved, stage


@pytest.mark.parametrize("has_side_stream", [False, True])
def test_buckets_start_after_the_messages_that_precede_them(
    monkeypatch: pytest.MonkeyPatch, *, has_side_stream: bool
) -> None:
    monkeypatch.setattr(plan_transfers, "transfer", lambda *_: BUCKETS)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    plan = plan_for(2, "1x<pp2>", [30, 30, 30])
    block, exchange = Block(), FakeExchange(has_side_stream=has_side_stream)
    moved, stage = hooked(block, exchange)
    (scheme,) = Strategy("1x<pp2>").schemes
    work: Any = SimpleNamespace(
        stage=stage,
        position=SimpleNamespace(scheme=scheme, stage=0),
        instructions=plan.instructions(0),
        micro_batches=[[0], [1], [2]],
        num_micro_batches=3,
        last_micro_batch=2,
    )
    for _ in range(2):
        moved.start_parameter_gather(plan, work)
        num_before = len(exchange.works)
        outputs, started = [], []
        for index, instruction in enumerate(work.instructions):
            match type(instruction).__name__:
                case "Forward":
                    outputs.append(block(torch.ones(2)))
                case "Backward":
                    outputs.pop(0).sum().backward()
            # The two buckets of the second stage start, and each exchange completes soon after.
            moved.launched(index)
            for one in exchange.works:
                one.end()
            started.append(len(exchange.works) - num_before)
        # F0, send 0, F1, send 1 and receive 0, B0, F2, send 2 and receive 1, B1, receive 2, B2.
        assert started == [0, 0, 0, 0, 0, 0, 2, 2, 2, 4]
        moved.finish_gradient_reduction()
        assert len(exchange.works) == num_before + 4


class CountedEvent:
    """An event of a device that there is not."""

    count = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        CountedEvent.count += 1

    def record(self) -> None:
        pass


@pytest.mark.parametrize("sharding", ["none", "gradients", "parameters"])
def test_a_measured_backward_waits_for_no_exchange_and_makes_no_event(
    monkeypatch: pytest.MonkeyPatch, sharding: ShardingKind
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", CountedEvent)
    monkeypatch.setattr(CountedEvent, "count", 0)
    with one_rank("cpu"):
        worker = make_worker(["1x<1>"], sharding=sharding)
        moved = worker.redistribution
        monkeypatch.setattr(moved, "_timers", CudaTimers())
        # As on CUDA, where reductions hold up no computation.
        monkeypatch.setattr(moved, "_has_side_stream", True)
        bench = SchemeBench(worker, Scheme("<1>"), None)
        bench.initialize_parameters()
        assert bench.time([20, 12]) is not None
        assert CountedEvent.count == 0
        # In an iteration they are made, so the hooks are there.
        train_step(worker, plan_for(1, "1x<1>", [20]), lambda _: np.ones(20, dtype=np.uint8))
        assert CountedEvent.count > 0
