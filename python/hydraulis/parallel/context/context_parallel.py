"""A rank's part in context parallelism: which tokens of a micro-batch it holds, and how they attend.

The decoder computes on them as on any tokens; only attention meets the other ranks. The parameters are whole
on every context rank, and their gradients *partial*: each rank has seen its own tokens, and the owner of the
master parameter adds them up. So is the loss: each rank's counts its own targets.

Legend: T tokens of the micro-batch, t = T/cp tokens of this rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.config.kinds import ContextKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.on_device import on_device
from hydraulis.model.packed import PackedSequences
from hydraulis.model.sequences import Sequences
from hydraulis.parallel.context.meetings import ring_meetings
from hydraulis.parallel.context.ring import RingSequences
from hydraulis.parallel.context.ulysses import UlyssesSequences
from hydraulis.parallel.context.zigzag import CutSequence, zigzag_split


@dataclass(frozen=True, slots=True, eq=False)
class ContextParallel:
    """One rank of a context group.

    Attributes:
        kind: `ulysses` exchanges tokens for heads before and after attention, and needs a query head for each
            rank; `ring` passes keys and values round, whatever the heads.
        group: the context ranks, in context order.
    """

    kind: ContextKind
    group: dist.ProcessGroup

    def share(self, whole: PackedSequences) -> tuple[Tensor, Sequences]:
        """Give this rank's part of a micro-batch.

        Args:
            whole: the sequences of the micro-batch, padding included.

        Returns:
            int64 `index_t`, the place of each of this rank's tokens in the micro-batch; and the sequences
            that they are of, which attend across the group.

        Raises:
            InvalidInputError: T is not a multiple of the group's size (code `micro_batch_invalid`).
        """
        rank, cp = self.group.rank(), self.group.size()
        if whole.num_tokens % cp:
            message = (
                f"{whole.num_tokens} tokens do not split evenly over {cp} ranks of a context group; "
                f"pad the micro-batch to a multiple of {cp}"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
        device = whole.position_T.device
        if self.kind == "ulysses":
            num_tokens = whole.num_tokens // cp
            index_t = torch.arange(rank * num_tokens, (rank + 1) * num_tokens, device=device)
            return index_t, UlyssesSequences(
                whole.position_T[index_t], whole.segments, self.group, whole.attention
            )
        split = zigzag_split(whole.lengths, cp)
        index_t = on_device(_zigzag_index(split, rank), device)
        meetings = ring_meetings(split, rank, cp, device)
        return index_t, RingSequences(whole.position_T[index_t], meetings, self.group, whole.attention)


def _zigzag_index(split: Sequence[CutSequence], rank: int) -> Tensor:
    """Give a rank's places in the micro-batch: of each sequence the front chunk, then the back one."""
    starts = accumulate((cut.bounds[-1] for cut in split), initial=0)
    chunks = [
        torch.arange(start + chunk.start, start + chunk.stop)
        for start, cut in zip(starts, split, strict=False)
        for chunk in (cut.front(rank), cut.back(rank))
    ]
    return torch.cat(chunks)
