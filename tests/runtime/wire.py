"""What a rank hands to the collectives of transfers, and the least that it could."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from hydraulis import Plan
from hydraulis._core import held_slices
from hydraulis.runtime.worker import Worker


class Sent:
    """Counts the bytes that transfers give to collectives for other ranks, both ways.

    Attributes:
        bytes: for any other rank.
        crossing_bytes: for ranks of other nodes.
    """

    def __init__(self, worker: Worker, ranks_per_node: int) -> None:
        self.bytes = self.crossing_bytes = 0
        self._node = ranks_per_node
        exchange = worker._transfers.arrival._exchange
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
            self.bytes += count * element_size if rank != own else 0
            self.crossing_bytes += count * element_size if rank // self._node != own // self._node else 0


def least_bytes(worker: Worker, plan: Plan) -> int:
    """Count what this rank cannot do without under a plan on one node: what it holds and is not its home.

    That comes as parameters and leaves as gradients. Counted by slices, not by the core's transfers.
    """
    position = plan.position(dist.get_rank())
    if position is None:
        return 0
    table = worker.parameters.table
    homes: dict[int, list[range]] = {}
    for home in worker.home.slices:
        homes.setdefault(home.parameter, []).append(range(home.start, home.end))
    elements = 0
    for held in held_slices(table, position):
        width = table.parameters[held.parameter].row_elements
        own = range(held.row_start * width, held.row_end * width)
        at_home = sum(
            max(0, min(own.stop, home.stop) - max(own.start, home.start))
            for home in homes.get(held.parameter, [])
        )
        elements += len(own) - at_home
    return elements * (worker.buffers.parameter.element_size() + worker.buffers.gradient.element_size())
