"""When a stage's computations have transfers go on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hydraulis.runtime.pipeline.timers import iteration_clock
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.redistribute.redistribution import Transfers
from runtime.redistribute.fake_exchange import FakeExchange, bucket, home_and_buffers

# Of the first this rank holds two elements, of the second none; it is the home of one of each.
BUCKETS = [bucket([(0, 2)], [(0, 1), (0, 1)]), bucket([], [(1, 1)])]


class Block(nn.Module):
    """A block of one parameter, whose gradient is added up in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def attached(block: Block, exchange: Any) -> tuple[Transfers, Any]:
    """Make transfers of a stage of this block alone."""
    table = SimpleNamespace(parameters=[SimpleNamespace(blocks=[0])])
    stage: Any = SimpleNamespace(held={0: block.weight}, blocks=lambda: iter([(0, block)]))
    home, buffers = home_and_buffers(home=2, held=2)
    parameters: Any = SimpleNamespace(table=table)
    transfers = Transfers(parameters, home, buffers, exchange, iteration_clock(CPU))
    transfers.attach(stage)
    return transfers, stage


@pytest.mark.parametrize("is_apart", [False, True])
def test_what_a_rank_holds_nothing_of_leaves_with_its_last_forward(*, is_apart: bool) -> None:
    block, exchange = Block(), FakeExchange(is_apart=is_apart)
    transfers, stage = attached(block, exchange)
    for _ in range(2):
        transfers.begin(BUCKETS, stage, num_micro_batches=3)
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
        transfers.finish_gradients()
