"""A rank's part of a plan: its stage, its instructions and its micro-batches."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch.distributed as dist

from hydraulis._core import Backward, Forward, Plan, Position, Replica, SendReceive
from hydraulis.data.collate import MicroBatchLayout, PackedMicroBatch
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


class MicroBatches:
    """The micro-batches of a rank's list, read one ahead of their forwards.

    All are laid out at once, before the first forward: their pinned memory is allocated while nothing waits
    for this rank's messages, and buffers take the size of the largest. The first one is read at once, each
    other one behind the launch of the forward before it, while the device computes.

    Attributes:
        layouts: Layout of each micro-batch; None for an empty one.

    Args:
        work: This rank's part of a plan, with a stage.
    """

    def __init__(self, work: RankWork) -> None:
        assert work.stage is not None, "a rank without work has no micro-batches"
        lay_out, length = work.stage.lay_out, work.sequences.length
        self.layouts: list[MicroBatchLayout | None] = [
            lay_out(list(map(length, sequences))) if sequences else None for sequences in work.micro_batches
        ]
        self._work = work
        self._read: dict[int, PackedMicroBatch] = {}
        self._unread = deque(index for index, layout in enumerate(self.layouts) if layout is not None)
        self.read_next()

    def take(self, micro_batch: int) -> PackedMicroBatch | None:
        """Return a micro-batch for its forward, in the order of forwards; None for an empty one."""
        return self._read.pop(micro_batch) if self.layouts[micro_batch] is not None else None

    def read_next(self) -> None:
        """Read the next micro-batch, unless one is read already or all are."""
        if self._unread and not self._read:
            index = self._unread.popleft()
            layout = self.layouts[index]
            assert layout is not None
            self._read[index] = layout.fill([*map(self._work.sequences, self._work.micro_batches[index])])


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
