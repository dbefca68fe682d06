"""What an attention kernel is: a forward that gives the log-sum-exp, a backward that takes it.

A kernel is a pair of pure functions without autograd. Its backward needs only the output and the
log-sum-exp of a query's whole row: softmax gradients depend on the other keys through these two alone
(FlashAttention, arXiv:2205.14135, section 3.1). So attention over more keys than one rank holds can be put
together from blocks: merge the blocks' outputs by their log-sum-exps, and give the merged pair to the
backward of each block.

Legend: T query tokens, S key tokens, N query heads, K key/value heads, D head dim.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.segments import Segments


class Heads(NamedTuple):
    """Queries, keys and values; or the gradients of them.

    Attributes:
        q_TND: queries.
        k_SKD: keys; K divides N, and query head n uses key/value head `n // (N / K)`.
        v_SKD: values.
    """

    q_TND: Tensor
    k_SKD: Tensor
    v_SKD: Tensor


class Attended(NamedTuple):
    """What attention gives.

    Attributes:
        o_TND: in the dtype of the queries; 0 where a query sees no key.
        log_sum_exp_TN: of the scaled scores, natural, in at least float32; minus infinity where a query sees
            no key.
    """

    o_TND: Tensor
    log_sum_exp_TN: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMask:
    """Which keys a query sees: those of the segment of the same number, up to its own place if causal.

    Attributes:
        queries: segments of the T query tokens; they may be empty.
        keys: segments of the S key tokens, as many; they may be empty.
        causal: whether a query sees only the keys up to its own place in the segment.

    Raises:
        InvalidInputError: there are not as many key segments as query segments, or a causal mask has segments
            of other lengths: kernels disagree on what that means (code `micro_batch_invalid`).
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
    """One way to compute attention; scores are scaled by `D ** -0.5`."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def kind(self) -> AttentionKind:
        """What configurations call it."""

    def refusal(self, q_TND: Tensor) -> str | None:
        """Say why it cannot take such heads, or None if it can."""

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend; new tensors, contiguous."""

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Give the gradients of the heads, in their dtypes.

        Args:
            do_TND: gradient of the output, of any strides.
            heads: as given to the forward.
            attended: over all the keys that the queries see, be they more than `heads` holds.
            mask: as given to the forward.
        """


def check_heads(heads: Heads, mask: AttentionMask) -> None:
    """Raise `InvalidInputError` (code `micro_batch_invalid`) unless the heads are those of the mask.

    They must hold its tokens, and D must be contiguous: the CPU kernel returns NaN otherwise (torch 2.13).
    """
    for name, x, segments in zip(heads._fields, heads, (mask.queries, mask.keys, mask.keys), strict=True):
        if x.shape[0] != segments.num_tokens:
            message = (
                f"{name} holds {x.shape[0]} tokens, but its segments hold {segments.num_tokens}; "
                "pass the sequences of the same micro-batch"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
        if x.stride(-1) != 1:
            message = (
                f"{name} has stride {x.stride(-1)} in its last dim, the limit is 1; call contiguous() on it"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
