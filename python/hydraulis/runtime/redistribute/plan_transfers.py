"""This rank's exchanges under a plan: those of a step, and under sharding those of each round.

Both depend on the plan's placement alone, and are kept for the placements that were used last.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch.distributed as dist

from hydraulis._core import BucketTransfer, Plan, transfer
from hydraulis.runtime.placement import ByPlacement, placement_of
from hydraulis.runtime.redistribute.gradient_rounds import first_round
from hydraulis.runtime.redistribute.parameter_gather import GatheredBucket
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.places import PlacedTransfer

# Rounds of the last placements whose transfers are kept.
_MOST_ROUNDS = 16


class StepTransfers(NamedTuple):
    """This rank's exchanges of each trained bucket, and of each frozen one if the model has any."""

    trained: list[BucketTransfer]
    frozen: list[BucketTransfer]


class Round(NamedTuple):
    """This rank's exchanges in a round.

    Attributes:
        gradients: Exchanges of each trained bucket.
        parameters: Buckets of each layer group's parameters: the trained one, and the frozen one if the model
            has any.
    """

    gradients: list[BucketTransfer | PlacedTransfer]
    parameters: list[list[GatheredBucket]]


class PlanTransfers:
    """Looks up this rank's exchanges.

    Args:
        optimizer_shard: This rank's optimizer shard.
        local_shard: This rank's local shard.

    Attributes:
        parameters: Parameters of the model.
        layout: Owners of all parameters.
    """

    def __init__(self, optimizer_shard: OptimizerShard, local_shard: LocalShard) -> None:
        self.parameters = optimizer_shard.parameters
        self.layout = optimizer_shard.layout
        self._gradient_places = local_shard.gradient_places
        self._parameter_places = local_shard.parameter_places
        self._steps = ByPlacement[StepTransfers]()
        self._rounds = ByPlacement[Round](_MOST_ROUNDS)

    def of_step(self, plan: Plan) -> StepTransfers:
        """Return the exchanges with all replicas of a plan."""
        return self._steps.get(
            placement_of(plan), lambda: self._split(transfer(self.layout, plan, dist.get_rank()))
        )

    def of_rounds(self, plan: Plan) -> list[Round]:
        """List the exchanges of each round; in the last one all replicas take part."""
        counts = [sum(map(bool, replica.micro_batches)) for replica in plan.replicas]
        num_rounds = max(counts)
        placement = placement_of(plan)
        rounds = []
        for number in range(num_rounds):
            is_used = [first_round(num_rounds, count) <= number for count in counts]
            rounds.append(
                self._rounds.get(placement._replace(is_used=is_used), partial(self._round, plan, is_used))
            )
        return rounds

    def _split(self, transfers: list[BucketTransfer]) -> StepTransfers:
        """Split the exchanges into those of the trained buckets and those of the frozen ones."""
        count = self.parameters.num_layer_groups
        return StepTransfers(transfers[:count], transfers[count:])

    def _round(self, plan: Plan, is_used: Sequence[bool]) -> Round:
        """Place the exchanges of a round with these replicas in the sharded buffers."""
        if is_used == placement_of(plan).is_used:
            trained, frozen = self.of_step(plan)
        else:
            trained, frozen = self._split(transfer(self.layout, plan, dist.get_rank(), is_used))
        places = self._parameter_places
        gathered = [
            [GatheredBucket(number, True, places.of_transfer(number, one))]
            for number, one in enumerate(trained)
        ]
        for number, one in enumerate(frozen):
            before = int(trained[number].inside.near_counts.sum())
            placed = places.of_transfer(number, one, elements_before=before)
            gathered[number].append(GatheredBucket(number, False, placed))
        gradients = [self._gradient_places.of_transfer(number, one) for number, one in enumerate(trained)]
        return Round(gradients, gathered)
