"""The decoder's interface to sequences, and its plain implementation: sequences packed end to end.

Legend: T tokens on this rank, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.kernel import Segments
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.tensors import to_device

IGNORE_INDEX = -100
"""Target of a token that the loss ignores: padding, a prompt's token, the last token of a sequence."""


class Sequences(Protocol):
    """The positions of the tokens in their sequences, and their attention.

    Attention is the decoder's only operation that mixes tokens. The owner of the sequences' placement
    therefore implements it: `PackedSequences` for a whole micro-batch, the classes of `parallel/context` for
    one rank of several.
    """

    @property
    def position_T(self) -> Tensor:  # noqa: N802  tensor names carry shape letters
        """Position of each token in its sequence, int64 [T]."""

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Attend causally inside each sequence; query head n uses key/value head `n // (N / K)`.

        Args:
            q_TND: Queries, before scaling by `D ** -0.5`.
            k_TKD: Keys; K divides N.
            v_TKD: Values.

        Returns:
            o_TND, contiguous, in the dtype of the queries.
        """


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequences:
    """The segments of a packed micro-batch and the positions inside them.

    A segment is one sequence with its own padding. Padding at the end of the micro-batch is a last segment:
    it attends to itself only, and the loss ignores its targets.

    Attributes:
        segments: Segments in order, each of at least 1 token.
        position_T: Position of each token in its segment, int64 [T].
        attention: Kernel that computes the attention.
    """

    segments: Segments
    position_T: Tensor
    attention: AttentionKind = "auto"

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], device: torch.device | str, attention: AttentionKind = "auto"
    ) -> Self:
        """Lay segments of the given lengths end to end.

        Args:
            lengths: Tokens per segment.
            device: Device of the tensors.
            attention: Kernel that computes the attention.

        Raises:
            InvalidInputError: `lengths` is empty, or a segment has less than 1 token
                (code `micro_batch_invalid`).
        """
        if not lengths or min(lengths) < 1:
            message = f"lengths = {tuple(lengths)} must have at least one segment, each of 1 token or more"
            raise InvalidInputError(message, code="micro_batch_invalid")
        # Built on the host and copied once: one kernel launch per segment would cost more than the copy.
        position_T = torch.cat([torch.arange(length) for length in lengths])
        return cls(Segments.from_lengths(lengths, device), to_device(position_T, device), attention)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each segment, in order."""
        return self.segments.lengths

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all segments, T."""
        return self.segments.num_tokens

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Attend causally inside each segment; see `varlen_attention`."""
        return varlen_attention(q_TND, k_TKD, v_TKD, self.segments, self.attention)
