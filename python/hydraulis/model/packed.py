"""Several sequences laid end to end in one micro-batch.

Legend: T tokens of the packed micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequences:
    """Where each segment of a packed micro-batch begins and ends, and the positions inside it.

    A segment is one sequence with its own padding. Padding at the end of the micro-batch is a last segment
    of its own: it attends to nothing but itself, and its targets are ignored by the loss.

    Attributes:
        lengths: tokens per segment, in order, each at least 1.
        position_T: int64, restarts at 0 in each segment.
    """

    lengths: tuple[int, ...]
    position_T: Tensor

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: torch.device | str) -> Self:
        """Lay out segments of these lengths.

        Args:
            lengths: tokens per segment.
            device: where `position_T` goes.

        Raises:
            InvalidInputError: there is no segment, or one is shorter than 1 token (code `segment_lengths`).
        """
        if not lengths or min(lengths) < 1:
            message = f"lengths = {tuple(lengths)} must hold at least one segment, each of 1 token or more"
            raise InvalidInputError(message, code="segment_lengths")
        # Made on the host and copied once: a kernel launch per segment would cost more than the copy.
        position_T = torch.cat([torch.arange(length) for length in lengths])
        return cls(lengths=tuple(lengths), position_T=position_T.to(device))

    @property
    def num_tokens(self) -> int:
        """T, the tokens of all segments together."""
        return sum(self.lengths)
