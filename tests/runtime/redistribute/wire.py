"""Bytes that a rank sends in gathers and reductions, and the least possible."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydraulis import Plan
from hydraulis._core import Position, Replica, local_slices
from hydraulis.runtime.worker import Worker


class Sent:
    """Counts the bytes that transfers give to collectives for other ranks, both ways.

    Attributes:
        inside_bytes: Bytes for other ranks of the same node.
        crossing_bytes: Bytes for ranks of other nodes.
    """

    def __init__(self, worker: Worker, ranks_per_node: int) -> None:
        self.inside_bytes = self.crossing_bytes = 0
        self._node = ranks_per_node
        exchange = worker.redistribution._gather._groups
        groups = [exchange.inside, *([exchange.between] if exchange.between else [])]
        # Stages exchange by the same collective.
        self._groups = [one._group for one in groups if one._group is not None]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count for as long as the context lasts."""
        all_to_all = dist.all_to_all_single

        def counting(output: Tensor, given: Tensor, *counts: Any, **options: Any) -> Any:
            if any(options["group"] is group for group in self._groups):
                self._count(options["group"], counts[1], given.element_size())
            return all_to_all(output, given, *counts, **options)

        setattr(dist, "all_to_all_single", counting)  # noqa: B010
        try:
            yield
        finally:
            setattr(dist, "all_to_all_single", all_to_all)  # noqa: B010

    def _count(self, group: dist.ProcessGroup, elements: list[int], element_size: int) -> None:
        own = dist.get_rank()
        for rank, count in zip(dist.get_process_group_ranks(group), elements, strict=True):
            if rank // self._node != own // self._node:
                self.crossing_bytes += count * element_size
            elif rank != own:
                self.inside_bytes += count * element_size


class LeastBytes(NamedTuple):
    """What must be sent to a rank as parameters, or by it as gradients, both ways together.

    Attributes:
        inside: Bytes from and to ranks of its node.
        crossing: Bytes from and to other nodes.
    """

    inside: int
    crossing: int


def least_bytes(worker: Worker, plan: Plan, ranks_per_node: int, *, with_frozen: bool) -> LeastBytes:
    """Count what this rank cannot do without under a plan, by slices and not by the core's transfers.

    Of an element whose owner is on another node, the rank of this node that stands where the owner stands on
    its own takes part in sending it to and fro, once for the whole node; the others trade with that one.

    Args:
        worker: This rank's worker.
        plan: Plan of the step.
        ranks_per_node: Ranks of a node.
        with_frozen: Whether the step gathers whole frozen parameters, which have no gradients.
    """
    own = dist.get_rank()
    node = range(own // ranks_per_node * ranks_per_node, (own // ranks_per_node + 1) * ranks_per_node)
    table = worker.parameters.table
    inside = crossing = 0
    for journey in _journeys(worker, plan, with_frozen=with_frozen):
        working = {rank for replica in journey.replicas for rank in replica.ranks}
        held = {rank: _held(worker, plan.position(rank) if rank in working else None) for rank in node}
        by_node = {
            parameter: np.any([of_rank[parameter] for of_rank in held.values()], axis=0)
            for parameter in held[own]
        }
        for rank in range(dist.get_world_size()):
            partner = node[rank % ranks_per_node]
            for owned in worker.optimizer_shard.layout.slices(rank):
                parameter = table.parameters[owned.parameter]
                if parameter.layer_groups[0] not in journey.layer_groups:
                    continue
                element_bytes = journey.trained_bytes if parameter.trained else journey.frozen_bytes
                if partner != own:
                    inside += element_bytes * int(held[own][owned.parameter][owned.start : owned.end].sum())
                elif rank != own:
                    crossing += element_bytes * int(by_node[owned.parameter][owned.start : owned.end].sum())
    return LeastBytes(inside, crossing)


class _Journey(NamedTuple):
    """A way of elements between their owners and the ranks that hold them.

    Attributes:
        replicas: Replicas whose ranks take part.
        trained_bytes: Bytes of a trained element.
        frozen_bytes: Bytes of a frozen element.
        layer_groups: Layer groups that travel.
    """

    replicas: list[Replica]
    trained_bytes: int
    frozen_bytes: int
    layer_groups: range


def _journeys(worker: Worker, plan: Plan, *, with_frozen: bool) -> Iterator[_Journey]:
    """Yield each journey of a step.

    Whole gradients travel once, as parameters do. Sharded ones travel once for each micro-batch. Sharded
    parameters travel once for each forward, frozen ones too, and once for each backward but for the
    embedding, the last layer, the head, and the layer groups in front of the first trained one.
    """
    parameter_bytes = worker.local_shard.parameter.element_size()
    gradient_bytes = worker.local_shard.gradient.element_size()
    frozen_bytes = parameter_bytes if with_frozen else 0
    sharding, count = worker.train.sharding, worker.parameters.num_layer_groups
    everything = range(count)
    if sharding == "none":
        yield _Journey(plan.replicas, parameter_bytes + gradient_bytes, frozen_bytes, everything)
        return
    if sharding == "gradients":
        yield _Journey(plan.replicas, parameter_bytes, frozen_bytes, everything)
    most = max(len(replica.micro_batches) for replica in plan.replicas)
    for left in range(most, 0, -1):
        replicas = [one for one in plan.replicas if len(one.micro_batches) >= left]
        yield _Journey(replicas, gradient_bytes, 0, everything)
        if sharding == "parameters":
            first = worker.parameters.table.parameters[0].layer_groups[0]
            yield _Journey(replicas, parameter_bytes, parameter_bytes, everything)
            yield _Journey(replicas, parameter_bytes, parameter_bytes, range(max(first, 1), count - 2))


def _held(worker: Worker, position: Position | None) -> dict[int, NDArray[np.bool_]]:
    """Mark the elements of each parameter that are held at a position."""
    table = worker.parameters.table
    marks = {
        number: np.zeros(parameter.rows * parameter.row_elements, dtype=bool)
        for number, parameter in enumerate(table.parameters)
    }
    for one in [] if position is None else local_slices(table, position):
        width = table.parameters[one.parameter].row_elements
        marks[one.parameter][one.row_start * width : one.row_end * width] = True
    return marks
