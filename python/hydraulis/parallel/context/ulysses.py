"""Ulysses: each rank attends with some of the heads over all tokens, so any mix of sequences is balanced.

Each rank has an equal contiguous run of tokens. Before attention, one all-to-all gives each rank its heads of
all tokens: queries, keys and values in one message. After attention, another all-to-all returns the outputs.
A key/value head that several ranks need is sent to each of them, and its gradient is the sum of theirs. The
number of ranks does not have to divide the number of heads: some ranks then have one head more (after
DeepSpeed-Ulysses, arXiv:2309.14509).

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
from hydraulis.model.attention.kernel import Segments
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.tensors import wide_dtype


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The heads of one rank.

    Attributes:
        queries: Query heads of the rank, consecutive, at least one.
        keys: Key/value heads for these query heads, in the order of grouped-query attention: their number
            divides the number of query heads, and each belongs to a run of them.
    """

    queries: range
    keys: tuple[int, ...]

    @property
    def key_runs(self) -> list[range]:
        """Key/value heads as runs of consecutive heads, without repeats inside a run."""
        runs: list[range] = []
        for key in self.keys:
            if runs and runs[-1].stop == key:
                runs[-1] = range(runs[-1].start, key + 1)
            else:
                runs.append(range(key, key + 1))
        return runs


def split_heads(num_queries: int, num_keys: int, cp: int) -> list[HeadShare]:
    """Split query heads over `cp` ranks, in sizes that differ by at most 1, with their key/value heads.

    A key/value head goes to every rank with one of its query heads. If a rank's query heads are neither whole
    groups nor part of one group, the rank gets a key/value head per query head.

    Args:
        num_queries: Query heads of the tensor rank, at least `cp`.
        num_keys: Key/value heads of the tensor rank, a divisor of `num_queries`.
        cp: Number of context ranks.
    """
    group = num_queries // num_keys
    shares = []
    for rank in range(cp):
        queries = range(num_queries * rank // cp, num_queries * (rank + 1) // cp)
        used = tuple(query // group for query in queries)
        distinct = tuple(dict.fromkeys(used))
        whole_groups = queries.start % group == 0 and queries.stop % group == 0
        shares.append(HeadShare(queries, distinct if whole_groups or len(distinct) == 1 else used))
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class UlyssesSequences:
    """A rank's contiguous run of a packed micro-batch.

    Attributes:
        position_T: Position of each of this rank's tokens in its sequence, int64 [t].
        segments: Segments of the whole micro-batch.
        group: Context ranks, in the order of their runs.
        attention: Kernel that computes the attention.
    """

    position_T: Tensor
    segments: Segments
    group: dist.ProcessGroup
    attention: AttentionKind = "auto"

    def attend(self, q_tND: Tensor, k_tKD: Tensor, v_tKD: Tensor) -> Tensor:
        """Attend like `varlen_attention` over the whole micro-batch; collective over the group."""
        shares = split_heads(q_tND.shape[1], k_tKD.shape[1], self.group.size())
        q_TnD, k_TkD, v_TkD = _to_heads(q_tND, k_tKD, v_tKD, shares, self.group)
        o_TnD = varlen_attention(q_TnD, k_TkD, v_TkD, self.segments, self.attention)
        return _to_tokens(o_TnD, shares, self.group)


class _TokensToHeads(torch.autograd.Function):
    """Exchanges all heads of this rank's tokens for this rank's heads of all tokens."""

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
            torch.cat(
                [q_tND[:, _span(share.queries)], *_key_heads(k_tKD, share), *_key_heads(v_tKD, share)], dim=1
            )
            for share in shares
        ]
        own = shares[group.rank()]
        received_TwD = torch.cat(_exchange(pieces, [_width(own)] * len(shares), group))
        return _split_widths(received_TwD, own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_TnD: Tensor, dk_TkD: Tensor, dv_TkD: Tensor) -> tuple[Tensor | None, ...]:
        shares, group = ctx.shares, ctx.group
        pieces = torch.cat((dq_TnD, dk_TkD, dv_TkD), dim=1).chunk(len(shares))
        received = _exchange(pieces, [_width(share) for share in shares], group)
        parts = [_split_widths(piece, share) for piece, share in zip(received, shares, strict=True)]
        dq_tND = torch.cat([dq for dq, _, _ in parts], dim=1)
        dk_tKD, dv_tKD = (
            _sum_key_gradients(shares, [part[index] for part in parts], ctx.num_keys) for index in (1, 2)
        )
        return dq_tND, dk_tKD, dv_tKD, None, None


class _HeadsToTokens(torch.autograd.Function):
    """Exchanges this rank's heads of all tokens for all heads of this rank's tokens."""

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
    """Send each rank its piece [t, ., D]; receive one piece per rank, with `widths` heads."""
    num_tokens, _, head_dim = pieces[0].shape
    outgoing = torch.cat([piece.flatten() for piece in pieces])
    sizes = [num_tokens * width * head_dim for width in widths]
    incoming = outgoing.new_empty(sum(sizes))
    dist.all_to_all_single(incoming, outgoing, sizes, [piece.numel() for piece in pieces], group=group)
    return [
        received.view(num_tokens, width, head_dim)
        for received, width in zip(incoming.split(sizes), widths, strict=True)
    ]


def _key_heads(x_tKD: Tensor, share: HeadShare) -> list[Tensor]:
    """Return a share's key/value heads as slices: an index of the heads would make the host wait on CUDA."""
    return [x_tKD[:, _span(run)] for run in share.key_runs]


def _sum_key_gradients(shares: Sequence[HeadShare], parts: Sequence[Tensor], num_keys: int) -> Tensor:
    """Sum the gradients of key/value heads, in rank order and in at least float32."""
    num_tokens, _, head_dim = parts[0].shape
    dtype = parts[0].dtype
    total_tKD = parts[0].new_zeros(num_tokens, num_keys, head_dim, dtype=wide_dtype(dtype))
    for share, part in zip(shares, parts, strict=True):
        # Run by run, because a rank may have the same head for several of its query heads.
        runs = share.key_runs
        for run, gradient in zip(runs, part.split([len(run) for run in runs], dim=1), strict=True):
            total_tKD[:, _span(run)] += gradient
    return total_tKD.to(dtype)


def _split_widths(x_TwD: Tensor, share: HeadShare) -> tuple[Tensor, Tensor, Tensor]:
    q_TnD, k_TkD, v_TkD = x_TwD.split([len(share.queries), len(share.keys), len(share.keys)], dim=1)
    return q_TnD, k_TkD, v_TkD


def _width(share: HeadShare) -> int:
    return len(share.queries) + 2 * len(share.keys)


def _span(heads: range) -> slice:
    return slice(heads.start, heads.stop)
