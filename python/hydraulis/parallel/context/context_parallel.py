"""A rank's part in context parallelism: its tokens of a micro-batch, and their attention.

The decoder computes on these tokens like on any tokens; only attention communicates. Parameters are whole on
every context rank, and their gradients are *partial*, because each rank has seen only its own tokens: the
owner of the master parameter sums them. The loss is partial too, over the rank's own targets.

Legend: T tokens of the micro-batch, t = T/cp tokens of this rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Scheme
from hydraulis.config.kinds import ContextKind
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.sequences import PackedSequences, Sequences
from hydraulis.model.tensors import to_device
from hydraulis.parallel.context.ring import RingSequences
from hydraulis.parallel.context.ring_buffers import SharedRingBuffers
from hydraulis.parallel.context.ring_steps import ring_steps
from hydraulis.parallel.context.ulysses import UlyssesSequences
from hydraulis.parallel.context.zigzag import CutSequence, zigzag_split


def check_context_degree(config: ModelConfig, scheme: Scheme, kind: ContextKind | None) -> None:
    """Check that the context ranks of a scheme can split a model's attention.

    Args:
        config: Configuration of the model; the scheme's tensor ranks split its heads first.
        scheme: Scheme to check.
        kind: Kind of context parallelism; None if the scheme has none.

    Raises:
        InvalidInputError: Ulysses would leave a rank without a query head (code `scheme_model_mismatch`).
    """
    heads = config.num_attention_heads // scheme.tp
    if kind == "ulysses" and scheme.cp > heads:
        message = (
            f"context degree cp = {scheme.cp} of scheme {scheme} is above its limit of {heads}, the query "
            "heads of a tensor rank (num_attention_heads / tp), which Ulysses assigns to ranks; choose a "
            "smaller degree, or ring attention"
        )
        raise InvalidInputError(message, code="scheme_model_mismatch")


@dataclass(frozen=True, slots=True, eq=False)
class ContextParallel:
    """One rank of a context group.

    Attributes:
        kind: Kind of context parallelism. `ulysses` exchanges tokens for heads before and after attention and
            needs a query head per rank; `ring` passes keys and values around, for any number of heads.
        group: Context ranks, in context order.
    """

    kind: ContextKind
    group: dist.ProcessGroup
    _buffers: SharedRingBuffers = field(default_factory=SharedRingBuffers, repr=False)

    def share(self, whole: PackedSequences) -> tuple[Tensor, Sequences]:
        """Return this rank's part of a micro-batch.

        Args:
            whole: Sequences of the micro-batch, including padding.

        Returns:
            The index of each of this rank's tokens in the micro-batch, int64 `index_t`, and the sequences of
            these tokens, which attend across the group.

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
        index_t = to_device(_zigzag_index(split, rank), device)
        steps = ring_steps(split, rank, cp, device)
        position_t, buffers = whole.position_T[index_t], self._buffers.for_tokens(len(index_t))
        return index_t, RingSequences(position_t, steps, self.group, whole.attention, buffers)


def _zigzag_index(split: Sequence[CutSequence], rank: int) -> Tensor:
    """Return the indices of a rank's tokens: front chunk, then back chunk of each sequence."""
    starts = accumulate((cut.bounds[-1] for cut in split), initial=0)
    chunks = [
        torch.arange(start + chunk.start, start + chunk.stop)
        for start, cut in zip(starts, split, strict=False)
        for chunk in (cut.front(rank), cut.back(rank))
    ]
    return torch.cat(chunks)
