"""What the ranks of test_transfers.py do."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Plan
from hydraulis._core import HeldSlice, held_slices
from hydraulis.config.model import ModelConfig
from hydraulis.runtime.worker import Worker
from runtime.tiny import make_worker, plan_for


class Pass(NamedTuple):
    """What one rank held and saw under one strategy.

    Attributes:
        parameters: by name, the first canonical row and the canonical values that arrived.
        gradients: likewise, what this rank contributed.
        gathered: whole parameters' gradients, in canonical order, on rank 0.
        master: likewise the master parameters.
        staging: elements and addresses of the staging buffers.
    """

    parameters: dict[str, tuple[int, Tensor]]
    gradients: dict[str, tuple[int, Tensor]]
    gathered: dict[str, Tensor]
    master: dict[str, Tensor]
    staging: list[tuple[int, int]]


def passes(config: ModelConfig, strategies: Sequence[str], lengths: Sequence[int]) -> list[Pass]:
    """Send parameters and collect made-up gradients, strategy after strategy."""
    worker = make_worker(strategies, config=config)
    return [_pass(worker, plan_for(dist.get_world_size(), text, lengths)) for text in strategies]


def _pass(worker: Worker, plan: Plan) -> Pass:
    transfers, buffers, home = worker._transfers, worker.buffers, worker.home
    buckets = transfers.prepare(plan)
    buffers.parameter.fill_(torch.nan)
    transfers.send_parameters(buckets)
    parameters = _held(worker, plan, buffers.parameter)
    # Whole numbers, so that their sum is exact in any order; and leftovers, which must not count.
    generator = torch.Generator().manual_seed(dist.get_rank())
    buffers.gradient.random_(-1000, 1000, generator=generator)
    home.gradient.fill_(1e6)
    transfers.collect_gradients(buckets)
    return Pass(
        parameters,
        _held(worker, plan, buffers.gradient),
        _canonical(worker, home.gather(home.gradient)),
        _canonical(worker, home.gather(home.master)),
        [
            (staging._buffer.numel(), staging._buffer.data_ptr())
            for staging in (transfers._outgoing, transfers._incoming)
        ],
    )


def _held(worker: Worker, plan: Plan, flat: Tensor) -> dict[str, tuple[int, Tensor]]:
    position = plan.position(dist.get_rank())
    slices: list[HeldSlice] = []
    if position is not None:
        slices = held_slices(worker.parameters.table, position)
    held = {}
    for piece in slices:
        width = worker.parameters.table.parameters[piece.parameter].row_elements
        start, end = piece.row_start * width, piece.row_end * width
        name = worker.parameters.names[piece.parameter]
        held[name] = (start, flat[piece.offset : piece.offset + end - start].clone())
    return held


def _canonical(worker: Worker, gathered: dict[str, Tensor] | None) -> dict[str, Tensor]:
    return {
        name: worker.parameters.canonical(value, name).clone() for name, value in (gathered or {}).items()
    }


def sum_of_large_and_small() -> tuple[float, float] | None:
    """Contribute 2^60, -2^60 and 1 from ranks 0, 1 and 2: only in rank order is the sum 1."""
    worker = make_worker(["3x<1>"])
    buckets = worker._transfers.prepare(plan_for(3, "3x<1>", [20, 20, 20]))
    worker.buffers.gradient.fill_([2.0**60, -(2.0**60), 1.0][dist.get_rank()])
    worker._transfers.collect_gradients(buckets)
    return worker.home.gradient.min().item(), worker.home.gradient.max().item()
