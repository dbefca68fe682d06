"""Ulysses: each rank attends with some of the heads over all tokens, and so every document mix is balanced.

Tokens stand on the ranks in equal contiguous runs. Before attention one all-to-all gives each rank its heads
of all tokens, queries, keys and values in one message; after it another one gives the outputs back. A
key/value head that serves several ranks goes to each of them, and its gradient is the sum of theirs. The
ranks need not divide the heads: then some have one more (after DeepSpeed-Ulysses, arXiv:2309.14509).

Legend: T tokens of the micro-batch, t = T/cp tokens of this rank, N query heads, K key/value heads, n and k
those of this rank, w = n + 2 k, D head dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.segments import Segments
from hydraulis.model.wide import wide_dtype
from hydraulis.parallel.context.head_split import HeadShare, share_heads


@dataclass(frozen=True, slots=True, eq=False)
class UlyssesSequences:
    """A rank's contiguous run of a packed micro-batch.

    Attributes:
        position_T: of this rank's tokens, each in its own sequence.
        segments: of the whole micro-batch.
        group: the context ranks, in the order of their runs.
        attention: the kernel by which they attend.
    """

    position_T: Tensor
    segments: Segments
    group: dist.ProcessGroup
    attention: AttentionKind = "auto"

    def attend(self, q_tND: Tensor, k_tKD: Tensor, v_tKD: Tensor) -> Tensor:
        """Attend as `varlen_attention` does over the whole micro-batch; collective over the group."""
        shares = share_heads(q_tND.shape[1], k_tKD.shape[1], self.group.size())
        q_TnD, k_TkD, v_TkD = _to_heads(q_tND, k_tKD, v_tKD, shares, self.group)
        o_TnD = varlen_attention(q_TnD, k_TkD, v_TkD, self.segments, self.attention)
        return _to_tokens(o_TnD, shares, self.group)


class _TokensToHeads(torch.autograd.Function):
    """All heads of this rank's tokens in, this rank's heads of all tokens out."""

    @staticmethod
    def forward(
        ctx: Any,
        q_tND: Tensor,
        k_tKD: Tensor,
        v_tKD: Tensor,
        shares: Sequence[HeadShare],
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.shares, ctx.group = shares, group
        ctx.num_keys = k_tKD.shape[1]
        pieces = [
            torch.cat([q_tND[:, _span(share.queries)], *_taken(k_tKD, share), *_taken(v_tKD, share)], dim=1)
            for share in shares
        ]
        own = shares[group.rank()]
        received_TwD = torch.cat(_exchange(pieces, [_width(own)] * len(shares), group))
        return _parted(received_TwD, own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_TnD: Tensor, dk_TkD: Tensor, dv_TkD: Tensor) -> tuple[Tensor | None, ...]:
        shares, group = ctx.shares, ctx.group
        pieces = torch.cat((dq_TnD, dk_TkD, dv_TkD), dim=1).chunk(len(shares))
        received = _exchange(pieces, [_width(share) for share in shares], group)
        parts = [_parted(piece, share) for piece, share in zip(received, shares, strict=True)]
        dq_tND = torch.cat([dq for dq, _, _ in parts], dim=1)
        dk_tKD, dv_tKD = (_summed(shares, [part[index] for part in parts], ctx.num_keys) for index in (1, 2))
        return dq_tND, dk_tKD, dv_tKD, None, None


class _HeadsToTokens(torch.autograd.Function):
    """This rank's heads of all tokens in, all heads of this rank's tokens out."""

    @staticmethod
    def forward(ctx: Any, o_TnD: Tensor, shares: Sequence[HeadShare], group: dist.ProcessGroup) -> Tensor:
        ctx.shares, ctx.group = shares, group
        widths = [len(share.queries) for share in shares]
        return torch.cat(_exchange(o_TnD.chunk(len(shares)), widths, group), dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_tND: Tensor) -> tuple[Tensor, None, None]:
        shares, group = ctx.shares, ctx.group
        pieces = [do_tND[:, _span(share.queries)] for share in shares]
        widths = [len(shares[group.rank()].queries)] * len(shares)
        return torch.cat(_exchange(pieces, widths, group)), None, None


_to_heads: Callable[..., tuple[Tensor, Tensor, Tensor]] = _TokensToHeads.apply
_to_tokens: Callable[[Tensor, Sequence[HeadShare], dist.ProcessGroup], Tensor] = _HeadsToTokens.apply


def _exchange(pieces: Sequence[Tensor], widths: Sequence[int], group: dist.ProcessGroup) -> list[Tensor]:
    """Send each rank its piece [t, ., D]; receive pieces of so many heads, by rank."""
    num_tokens, _, head_dim = pieces[0].shape
    outgoing = torch.cat([piece.flatten() for piece in pieces])
    sizes = [num_tokens * width * head_dim for width in widths]
    incoming = outgoing.new_empty(sum(sizes))
    dist.all_to_all_single(incoming, outgoing, sizes, [piece.numel() for piece in pieces], group=group)
    return [
        received.view(num_tokens, width, head_dim)
        for received, width in zip(incoming.split(sizes), widths, strict=True)
    ]


def _taken(x_tKD: Tensor, share: HeadShare) -> list[Tensor]:
    """Give a share's key/value heads, run by run: for an index of them CUDA would hold the host up."""
    return [x_tKD[:, _span(run)] for run in share.key_runs]


def _summed(shares: Sequence[HeadShare], parts: Sequence[Tensor], num_keys: int) -> Tensor:
    """Add the gradients of key/value heads up, in rank order and in at least float32."""
    num_tokens, _, head_dim = parts[0].shape
    dtype = parts[0].dtype
    total_tKD = parts[0].new_zeros(num_tokens, num_keys, head_dim, dtype=wide_dtype(dtype))
    for share, part in zip(shares, parts, strict=True):
        # Run by run: a rank may have got the same head for several of its query heads.
        runs = share.key_runs
        for run, gradient in zip(runs, part.split([len(run) for run in runs], dim=1), strict=True):
            total_tKD[:, _span(run)] += gradient
    return total_tKD.to(dtype)


def _parted(x_TwD: Tensor, share: HeadShare) -> tuple[Tensor, Tensor, Tensor]:
    q_TnD, k_TkD, v_TkD = x_TwD.split([len(share.queries), len(share.keys), len(share.keys)], dim=1)
    return q_TnD, k_TkD, v_TkD


def _width(share: HeadShare) -> int:
    return len(share.queries) + 2 * len(share.keys)


def _span(heads: range) -> slice:
    return slice(heads.start, heads.stop)
