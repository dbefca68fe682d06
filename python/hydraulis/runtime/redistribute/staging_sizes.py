"""How much of what is on its way a rank stages at most: set aside once, so that no strategy allocates."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from hydraulis._core import Cluster, Home, Scheme
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True)
class StagingSizes:
    """Elements of one bucket, whatever the strategy.

    Attributes:
        bucket: of the largest one.
        contributions: to gradients, that one rank gets from its node; as many parameters it sends there. Each
            holder has as much of a bucket as a rank of the narrowest scheme at most, and all holders of a
            node send shares of that: in all as much as one of them holds. What several tensor ranks hold
            alike, such as norms, is counted for each rank of the node: all of it may live on one of them.
        relayed: that live on one rail; 0 if there is one node.
    """

    bucket: int
    contributions: int
    relayed: int

    @classmethod
    def of(cls, parameters: ModelParameters, home: Home, cluster: Cluster, schemes: Sequence[Scheme]) -> Self:
        """Count them.

        Args:
            parameters: that travel.
            home: of them.
            cluster: of all ranks.
            schemes: every scheme that a plan of the run may use.
        """
        narrowest, widest = (pick(scheme.tp for scheme in schemes) for pick in (min, max))
        whole: Counter[int] = Counter()
        incoming: Counter[int] = Counter()
        for parameter in parameters.table.parameters:
            bucket, size = parameter.blocks[0], parameter.rows * parameter.row_elements
            whole[bucket] += size
            if parameter.units < widest:
                incoming[bucket] += size * cluster.gpus_per_node
            else:
                # Whole units, such as heads.
                incoming[bucket] += math.ceil(parameter.units / narrowest) * (size // parameter.units)
        is_relayed = cluster.gpus_per_node < cluster.gpus
        return cls(
            bucket=max(whole.values()),
            contributions=max(incoming.values()),
            relayed=max(home.largest_relays(parameters.table)) if is_relayed else 0,
        )
