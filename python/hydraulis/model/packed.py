"""Several sequences laid end to end in one micro-batch.

Legend: T tokens of the packed micro-batch, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.on_device import on_device
from hydraulis.model.segments import Segments


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequences:
    """Where each segment of a packed micro-batch begins and ends, and the positions inside it.

    A segment is one sequence with its own padding. Padding at the end of the micro-batch is a last segment
    of its own: it attends to nothing but itself, and its targets are ignored by the loss.

    Attributes:
        segments: in order, each of at least 1 token.
        position_T: int64, restarts at 0 in each segment.
        attention: the kernel by which they attend.
    """

    segments: Segments
    position_T: Tensor
    attention: AttentionKind = "auto"

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], device: torch.device | str, attention: AttentionKind = "auto"
    ) -> Self:
        """Lay out segments of these lengths.

        Args:
            lengths: tokens per segment.
            device: where the tensors go.
            attention: the kernel by which they attend.

        Raises:
            InvalidInputError: there is no segment, or one is shorter than 1 token (code
                `micro_batch_invalid`).
        """
        if not lengths or min(lengths) < 1:
            message = f"lengths = {tuple(lengths)} must hold at least one segment, each of 1 token or more"
            raise InvalidInputError(message, code="micro_batch_invalid")
        # Made on the host and copied once: a kernel launch per segment would cost more than the copy.
        position_T = torch.cat([torch.arange(length) for length in lengths])
        return cls(Segments.from_lengths(lengths, device), on_device(position_T, device), attention)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each segment, in order."""
        return self.segments.lengths

    @property
    def num_tokens(self) -> int:
        """T, the tokens of all segments together."""
        return self.segments.num_tokens

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Attend causally inside each segment; see `varlen_attention`."""
        return varlen_attention(q_TND, k_TKD, v_TKD, self.segments, self.attention)
