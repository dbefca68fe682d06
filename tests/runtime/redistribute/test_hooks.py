"""When the hooks of a stage wait for parameters and start gradient reductions."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hydraulis.runtime.pipeline.timers import step_timers
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.redistribute import redistribution
from hydraulis.runtime.redistribute.redistribution import Redistribution
from runtime.redistribute.fake_exchange import FakeExchange, bucket, shards

# Of the first this rank holds two elements, of the second none; it is the home of one of each.
BUCKETS = [bucket([(0, 2)], [(0, 1), (0, 1)]), bucket([], [(1, 1)])]


class Block(nn.Module):
    """A block of one parameter, whose gradient is added up in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def hooked(block: Block, exchange: Any) -> tuple[Redistribution, Any]:
    """Make the redistribution of a stage of this block alone."""
    table = SimpleNamespace(parameters=[SimpleNamespace(blocks=[0])])
    stage: Any = SimpleNamespace(trained={0: block.weight}, layer_groups=lambda: iter([(0, block)]))
    optimizer_shard, local_shard = shards(owned=2, local=2)
    optimizer_shard.parameters = SimpleNamespace(table=table, num_layer_groups=len(BUCKETS))
    optimizer_shard.layout = None
    moved = Redistribution(exchange, optimizer_shard, local_shard, step_timers(CPU))
    moved.register_hooks(stage)
    return moved, stage


@pytest.mark.parametrize("has_side_stream", [False, True])
def test_what_a_rank_holds_nothing_of_leaves_with_its_last_forward(
    monkeypatch: pytest.MonkeyPatch, *, has_side_stream: bool
) -> None:
    monkeypatch.setattr(redistribution, "transfer", lambda *_: BUCKETS)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    plan: Any = SimpleNamespace(position=lambda _: None)
    block, exchange = Block(), FakeExchange(has_side_stream=has_side_stream)
    moved, stage = hooked(block, exchange)
    for _ in range(2):
        moved.start_parameter_gather(plan, stage, num_micro_batches=3)
        num_before = len(exchange.works)
        # One forward one backward, on the second of three stages.
        outputs = [block(torch.ones(2)), block(torch.ones(2))]
        outputs.pop(0).sum().backward()
        assert len(exchange.works) == num_before
        outputs.append(block(torch.ones(2)))
        assert len(exchange.works) == num_before + 1
        outputs.pop(0).sum().backward()
        assert len(exchange.works) == num_before + 1
        outputs.pop(0).sum().backward()
        assert len(exchange.works) == num_before + 2
        moved.finish_gradient_reduction()
