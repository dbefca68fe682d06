"""The interface of an attention kernel: a forward that returns the log-sum-exp, a backward that takes it.

A kernel is a pair of pure functions without autograd. Its backward needs only the output and the log-sum-exp
of a query's whole row, because softmax gradients depend on the other keys through these two alone
(FlashAttention, arXiv:2205.14135, section 3.1). Attention over the keys of several ranks is therefore
computed block by block: merge the outputs of the blocks by their log-sum-exps, and pass the merged pair to
the backward of each block.

Legend: T query tokens, S key tokens, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.tensors import to_device


class Heads(NamedTuple):
    """Queries, keys and values, or their gradients.

    Attributes:
        q_TND: Queries.
        k_SKD: Keys; K divides N, and query head n uses key/value head `n // (N / K)`.
        v_SKD: Values.
    """

    q_TND: Tensor
    k_SKD: Tensor
    v_SKD: Tensor


class Attended(NamedTuple):
    """Result of attention.

    Attributes:
        o_TND: Output in the dtype of the queries; 0 for a query without visible keys.
        log_sum_exp_TN: Natural log-sum-exp of the scaled scores in at least float32; minus infinity for a
            query without visible keys.
    """

    o_TND: Tensor
    log_sum_exp_TN: Tensor


@dataclass(frozen=True, eq=False)
class Segments:
    """Consecutive runs of tokens, described for the host and for the device.

    Attributes:
        lengths: Tokens of each segment, in order; a segment may be empty.
        boundary: Start of each segment and the end of the last one, int32 [segments + 1], on the device of
            the tokens.
    """

    lengths: tuple[int, ...]
    boundary: Tensor

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: torch.device | str) -> Self:
        """Lay segments of the given lengths end to end, with `boundary` on `device`."""
        boundary = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return cls(lengths=tuple(lengths), boundary=to_device(boundary, device))

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all segments."""
        return sum(self.lengths)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest segment."""
        return max(self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMask:
    """The visible keys of each query: the keys in the segment of the same index, up to the query if causal.

    Attributes:
        queries: Segments of the T query tokens.
        keys: Segments of the S key tokens, as many as those of the queries.
        causal: Whether a query sees only the keys up to its own index in the segment.

    Raises:
        InvalidInputError: The numbers of segments differ, or a causal mask has segments of different lengths,
            which kernels interpret differently (code `micro_batch_invalid`).
    """

    queries: Segments
    keys: Segments
    causal: bool

    def __post_init__(self) -> None:
        same = self.queries.lengths == self.keys.lengths
        if len(self.queries.lengths) != len(self.keys.lengths) or (self.causal and not same):
            message = (
                f"queries have segments of {self.queries.lengths} tokens, keys of {self.keys.lengths}, "
                f"causal = {self.causal}: both need the same number of segments, and the same lengths if "
                "causal; cut both alike"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")


class AttentionKernel(Protocol):
    """An implementation of attention; scores are scaled by `D ** -0.5`."""

    @property
    def name(self) -> str:
        """Name of the kernel in messages."""

    @property
    def kind(self) -> AttentionKind:
        """Name of the kernel in configurations."""

    def refusal(self, q_TND: Tensor) -> str | None:
        """Return the reason why the kernel does not support these heads, or None if it does."""

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend; the results are new, contiguous tensors."""

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads in their dtypes.

        Args:
            do_TND: Gradient of the output, with any strides.
            heads: Heads of the forward.
            attended: Result over all visible keys of the queries, including keys that are not in `heads`.
            mask: Mask of the forward.
        """


def check_heads(heads: Heads, mask: AttentionMask) -> None:
    """Raise `InvalidInputError` (code `micro_batch_invalid`) unless the heads match the mask.

    The numbers of tokens must match. D must be contiguous: the CPU kernel returns NaN otherwise (torch 2.13).
    """
    for name, x, segments in zip(heads._fields, heads, (mask.queries, mask.keys, mask.keys), strict=True):
        if x.shape[0] != segments.num_tokens:
            message = (
                f"{name} has {x.shape[0]} tokens, but its segments have {segments.num_tokens}; "
                "pass the sequences of the same micro-batch"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
        if x.stride(-1) != 1:
            message = (
                f"{name} has stride {x.stride(-1)} in its last dim, the limit is 1; call contiguous() on it"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
