"""Workers of test_redistribution.py."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Cluster, Link, Plan, Planner
from hydraulis._core import LocalSlice, local_slices
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.placement import placement_of
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.gathered import gather
from runtime.redistribute.wire import Sent
from runtime.tiny import CAPS, make_worker, plan_for, planner_for


class Pass(NamedTuple):
    """What one rank held and saw under one strategy.

    Attributes:
        parameters: First canonical row and canonical values that arrived, by name.
        gradients: First canonical row and values that this rank contributed, by name.
        gathered: Gradients of whole parameters, in canonical order, on rank 0.
        master: Whole master parameters, in canonical order, on rank 0.
        staging: Bytes of each buffer that transfers stage in.
        crossing: Bytes that this rank gave to collectives for ranks of other nodes, both ways.
        planned: Bytes that a plan counts as crossing, of all ranks.
        reserved: Bytes of each such buffer before the first pass.
    """

    parameters: dict[str, tuple[int, Tensor]]
    gradients: dict[str, tuple[int, Tensor]]
    gathered: dict[str, Tensor]
    master: dict[str, Tensor]
    staging: list[int]
    crossing: int
    planned: int
    reserved: list[int]


def passes(config: ModelConfig, strategies: Sequence[str], lengths: Sequence[int]) -> list[Pass]:
    """Send parameters and collect made-up gradients, strategy after strategy."""
    worker = make_worker(strategies, config=config)
    reserved = _staging(worker)
    return [_pass(worker, plan_for(dist.get_world_size(), text, lengths), reserved) for text in strategies]


def _fit(worker: Worker, plan: Plan) -> None:
    """Give the buffers their size, as the worker does before a step."""
    worker._fit_local_shard(placement_of(plan), plan.position(dist.get_rank()))


def _staging(worker: Worker) -> list[int]:
    # Rooms take turns.
    return sorted(room.nbytes for room in worker.redistribution.staging)


def _pass(worker: Worker, plan: Plan, reserved: list[int]) -> Pass:
    redistribution, buffers, shard = worker.redistribution, worker.local_shard, worker.optimizer_shard
    _fit(worker, plan)
    buffers.parameter.fill_(torch.nan)
    # Leftovers must not count.
    shard.gradient.fill_(1e6)
    node = ranks_per_node()
    sent = Sent(worker, node)
    with sent.counted():
        redistribution.start_parameter_gather(plan)
        redistribution.finish_parameter_gather()
    assert not buffers.gradient.any()
    parameters = _held(worker, plan, buffers.parameter)
    # Whole numbers, so that their sum is exact in any order.
    generator = torch.Generator(buffers.gradient.device).manual_seed(dist.get_rank())
    buffers.gradient.random_(-1000, 1000, generator=generator)
    # They may lie in another order when they have left.
    gradients = _held(worker, plan, buffers.gradient)
    with sent.counted():
        redistribution.finish_gradient_reduction()
    return Pass(
        parameters,
        gradients,
        _canonical(worker, gather(shard, shard.gradient)),
        _canonical(worker, gather(shard, shard.master)),
        _staging(worker),
        sent.crossing_bytes,
        _planned_crossing(worker, plan, node),
        reserved,
    )


def _planned_crossing(worker: Worker, plan: Plan, node: int) -> int:
    """Count by the core what the same positions move between nodes, out and back."""
    cluster = Cluster(dist.get_world_size(), node)
    link = Link(
        worker.parameters.table,
        gigabytes_per_s=1.0,
        parameter_bytes=worker.local_shard.parameter.element_size(),
        gradient_bytes=worker.local_shard.gradient.element_size(),
    )
    profile = with_schemes(made_up_profile(CAPS), worker.schemes)
    planner = Planner(profile, cluster, strategies=[plan.strategy], link=link)
    counted = planner.plan(plan.lengths, plan.targets)
    same = [counted.position(rank) for rank in range(cluster.gpus)] == [
        plan.position(rank) for rank in range(cluster.gpus)
    ]
    assert same
    assert counted.moved_bytes is not None
    return counted.moved_bytes


def _held(worker: Worker, plan: Plan, flat: Tensor) -> dict[str, tuple[int, Tensor]]:
    position = plan.position(dist.get_rank())
    slices: list[LocalSlice] = []
    if position is not None:
        slices = local_slices(worker.parameters.table, position)
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
    plan = plan_for(3, "3x<1>", [20, 20, 20])
    _fit(worker, plan)
    worker.redistribution.start_parameter_gather(plan)
    worker.redistribution.finish_parameter_gather()
    worker.local_shard.gradient.fill_([2.0**60, -(2.0**60), 1.0][dist.get_rank()])
    worker.redistribution.finish_gradient_reduction()
    return worker.optimizer_shard.gradient.min().item(), worker.optimizer_shard.gradient.max().item()


def travelled_in_bfloat16() -> tuple[bool, bool, set[torch.dtype], set[torch.dtype]]:
    """Say if parameters came as bfloat16 has them and gradients with more digits, and how they travelled."""
    dtypes: list[torch.dtype] = []
    all_to_all = dist.all_to_all_single

    def recording(output: Tensor, *args: Any, **kwargs: Any) -> Any:
        dtypes.append(output.dtype)
        return all_to_all(output, *args, **kwargs)

    setattr(dist, "all_to_all_single", recording)  # noqa: B010
    worker = make_worker(["1x<tp2>", "2x<1>"], dtype=torch.bfloat16)
    plan = plan_for(2, "1x<tp2>", [20, 20])
    _fit(worker, plan)
    worker.redistribution.start_parameter_gather(plan)
    worker.redistribution.finish_parameter_gather()
    master = gather(worker.optimizer_shard, worker.optimizer_shard.master) or {}
    rounded = {name: value.bfloat16() for name, value in _canonical(worker, master).items()}
    held = _held(worker, plan, worker.local_shard.parameter)
    came = dist.get_rank() > 0 or all(
        torch.equal(values.cpu(), rounded[name][start : start + len(values)])
        for name, (start, values) in held.items()
    )
    of_parameters = set(dtypes)
    dtypes.clear()
    third = 1.0 / 3.0
    worker.local_shard.gradient.fill_(third)
    worker.redistribution.finish_gradient_reduction()
    gathered = gather(worker.optimizer_shard, worker.optimizer_shard.gradient) or {}
    # One holder of what is split, two of norms.
    once, twice = (torch.tensor(times * third, dtype=torch.float32).item() for times in (1, 2))
    summed = all((value == (twice if "norm" in name else once)).all() for name, value in gathered.items())
    return came, summed, of_parameters, set(dtypes)


def staging_of_one_rank(sharding: ShardingKind, frozen: tuple[str, ...]) -> int:
    """Train two steps of one rank; return the bytes that transfers staged in."""
    worker = make_worker(["1x<1>"], sharding=sharding, frozen=frozen)
    lengths = [20, 9, 30]
    plan = planner_for(1, ["1x<1>"]).plan(lengths, [length - 1 for length in lengths])
    losses = [train_step(worker, plan, lambda sequence: np.full(lengths[sequence], 7)).loss for _ in range(2)]
    assert losses[1] < losses[0]
    return sum(_staging(worker))
