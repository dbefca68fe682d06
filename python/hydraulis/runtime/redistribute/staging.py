"""Staging memory for elements in transit: allocated once at its largest size, so no strategy allocates."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydraulis._core import Cluster, OptimizerShards, Scheme
from hydraulis.runtime.state.parameters import ModelParameters


class Staging:
    """Memory that grows to the largest request and keeps that size.

    Args:
        like: Tensor whose dtype and device the memory has.

    Attributes:
        room: All of the memory.
    """

    def __init__(self, like: Tensor) -> None:
        self.room = like.new_empty(0)

    def take(self, elements: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return uninitialised elements.

        Args:
            elements: Number of elements.
            dtype: Dtype of the elements, no wider than the memory's; the memory's if left out.
        """
        if len(self.room) < elements:
            self.room = self.room.new_empty(elements)
        if self.room.is_cuda:
            # Computation and the side stream take turns: replaced memory returns once both are past it.
            self.room.record_stream(torch.cuda.current_stream(self.room.device))
        return self.room.view(dtype or self.room.dtype)[:elements]


@dataclass(frozen=True, slots=True)
class StagingSizes:
    """Most elements of one bucket in transit on a rank under any strategy.

    Attributes:
        bucket: Elements of the largest bucket.
        contributions: Elements of gradients that a rank receives from its node; it sends as many parameters
            there. Each rank's local shard has at most as much of a bucket as the narrowest scheme's, and all
            ranks of a node together send one local shard to each receiver. An element that several tensor
            ranks hold alike, such as a norm's, counts once for each rank of the node, because one rank may
            own all of them.
        relayed: Elements that one rail owns, or that a rank owns for every node: an owner exchanges its
            elements with all nodes at once, and the ranks of a rail may own unequal numbers. 0 on one node.
    """

    bucket: int
    contributions: int
    relayed: int

    @classmethod
    def from_schemes(
        cls,
        parameters: ModelParameters,
        layout: OptimizerShards,
        cluster: Cluster,
        schemes: Sequence[Scheme],
        *,
        trained: bool,
    ) -> Self:
        """Count the elements of the trained or of the frozen buckets.

        Args:
            parameters: The model's parameters.
            layout: Owner of each element.
            cluster: All ranks.
            schemes: Every scheme that a plan of the run may use.
            trained: Whether to count trained buckets.
        """
        narrowest, widest = (pick(scheme.tp for scheme in schemes) for pick in (min, max))
        whole: Counter[int] = Counter()
        incoming: Counter[int] = Counter()
        for parameter in parameters.table.parameters:
            bucket, size = parameter.layer_groups[0], parameter.rows * parameter.row_elements
            if parameter.trained != trained:
                continue
            whole[bucket] += size
            if parameter.units < widest:
                incoming[bucket] += size * cluster.gpus_per_node
            else:
                # Tensor ranks hold whole units, such as heads.
                incoming[bucket] += math.ceil(parameter.units / narrowest) * (size // parameter.units)
        relayed = 0
        if cluster.gpus_per_node < cluster.gpus:
            relays, pieces = layout.largest_relays(), layout.largest_pieces()
            nodes, place = -(-cluster.gpus // cluster.gpus_per_node), 0 if trained else 1
            relayed = max(relays[place], nodes * pieces[place])
        return cls(
            bucket=max(whole.values(), default=0),
            contributions=max(incoming.values(), default=0),
            relayed=relayed,
        )
