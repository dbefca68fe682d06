"""A rank's part of a plan: its stage, its instructions and its micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch.distributed as dist

from hydraulis._core import Backward, Forward, Plan, Position, Replica, SendReceive
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.runtime.pipeline.planned_sequences import PlannedSequences
from hydraulis.runtime.pipeline.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """The part of a plan that this rank carries out.

    Attributes:
        position: Position of this rank in its replica; None for a rank without work.
        replica: Replica of this rank; None without work. The stage is then None too.
        stage: Module of the position.
        instructions: Forwards, backwards and exchanges of the rank, in order.
        micro_batches: Sequences of each micro-batch of the replica. An empty one is neither computed nor
            sent; its place keeps the ones around it apart in memory.
        denominator: Number of target tokens of the whole global batch.
        sequences: Reader of the sequences.
    """

    position: Position | None
    replica: Replica | None
    stage: Stage | None
    instructions: Sequence[Forward | Backward | SendReceive]
    micro_batches: Sequence[Sequence[int]]
    denominator: int
    sequences: PlannedSequences

    @property
    def num_micro_batches(self) -> int:
        """The number of micro-batches that have sequences."""
        return sum(map(bool, self.micro_batches))

    @property
    def last_micro_batch(self) -> int:
        """The index of the last micro-batch that has sequences; -1 if there is none."""
        return max((index for index, one in enumerate(self.micro_batches) if one), default=-1)

    def collate(self) -> list[PackedMicroBatch | None]:
        """Read and pack the micro-batches; None in place of an empty one."""
        if self.stage is None:
            return []
        return [
            self.stage.collate([self.sequences(sequence) for sequence in sequences]) if sequences else None
            for sequences in self.micro_batches
        ]


def own_replica(plan: Plan) -> Replica | None:
    """Return the replica of this rank; None for a rank without work."""
    rank = dist.get_rank()
    if plan.position(rank) is None:
        return None
    return next(replica for replica in plan.replicas if rank in replica.ranks)


def neighbours(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield the pairs of ranks that exchange activations and gradients under a plan."""
    for replica in plan.replicas:
        for stage, following in pairwise(replica.stages):
            yield from zip(stage, following, strict=True)
