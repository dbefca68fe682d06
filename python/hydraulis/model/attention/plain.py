"""Attention by its definition: a masked softmax over the scores, one block of queries at a time.

Plain attention runs on any device where no flash kernel fits: on CUDA for float32 and float64, for head dims
that are no multiple of 8, and on devices older than Ampere. It launches a dozen small kernels per block, so
it is slow on many short segments. Its memory is bounded by the size of a block.

Legend: T query tokens, S key tokens, N query heads, K key/value heads, G = N/K query heads of each, D head
dim, l query tokens of one block, s key tokens visible to them.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads
from hydraulis.model.tensors import wide_dtype

# Scores per block: 64 MiB in float32; backward has three such tensors at once.
_SCORES = 1 << 24


class PlainAttention:
    """A masked softmax over the scores of each block of queries, in at least float32.

    Args:
        block_scores: Maximum number of scores in a block; a block has at least one query.
    """

    name = "plain attention"
    kind: AttentionKind = "plain"

    def __init__(self, block_scores: int = _SCORES) -> None:
        self._block_scores = block_scores

    def refusal(self, q_TND: Tensor) -> str | None:  # noqa: ARG002  argument of the protocol
        """Return None: plain attention supports any heads."""
        return None

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend block by block."""
        o_TND = torch.zeros_like(heads.q_TND, memory_format=torch.contiguous_format)
        wide = wide_dtype(o_TND.dtype)
        log_sum_exp_TN = o_TND.new_full(o_TND.shape[:2], -math.inf, dtype=wide)
        for block in self._blocks(heads, mask):
            q_lKGD, k_sKD, v_sKD = _grouped(heads, block)
            score_KGls = _scores(q_lKGD, k_sKD, block.diagonal)
            log_sum_exp_KGl = score_KGls.logsumexp(-1)
            weight_KGls = (score_KGls - log_sum_exp_KGl[..., None]).exp()
            o_TND[block.rows] = (
                torch.einsum("kgls,skd->lkgd", weight_KGls, v_sKD).flatten(1, 2).to(o_TND.dtype)
            )
            log_sum_exp_TN[block.rows] = log_sum_exp_KGl.flatten(0, 1).T
        return Attended(o_TND, log_sum_exp_TN)

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Return the gradients of the heads; those of keys and values are summed in at least float32."""
        wide = attended.log_sum_exp_TN.dtype
        dq_TND, dk_SKD, dv_SKD = (
            torch.zeros_like(x, dtype=wide, memory_format=torch.contiguous_format) for x in heads
        )
        num_groups = heads.k_SKD.shape[1]
        for block in self._blocks(heads, mask):
            q_lKGD, k_sKD, v_sKD = _grouped(heads, block)
            log_sum_exp_KGl = attended.log_sum_exp_TN[block.rows].T.unflatten(0, (num_groups, -1))
            weight_KGls = (_scores(q_lKGD, k_sKD, block.diagonal) - log_sum_exp_KGl[..., None]).exp()
            do_lKGD, o_lKGD = (
                x[block.rows].unflatten(1, (num_groups, -1)).to(wide) for x in (do_TND, attended.o_TND)
            )
            dv_SKD[block.columns] += torch.einsum("kgls,lkgd->skd", weight_KGls, do_lKGD)
            dweight_KGls = torch.einsum("lkgd,skd->kgls", do_lKGD, v_sKD)
            # The gradient of a softmax subtracts the row's total, over all keys of the row on any rank.
            row_KGl = (do_lKGD * o_lKGD).sum(-1).permute(1, 2, 0)
            dscore_KGls = weight_KGls * (dweight_KGls - row_KGl[..., None]) * _scale(q_lKGD)
            dq_TND[block.rows] = torch.einsum("kgls,skd->lkgd", dscore_KGls, k_sKD).flatten(1, 2)
            dk_SKD[block.columns] += torch.einsum("kgls,lkgd->skd", dscore_KGls, q_lKGD)
        return Heads(*(x.to(heads.q_TND.dtype) for x in (dq_TND, dk_SKD, dv_SKD)))

    def _blocks(self, heads: Heads, mask: AttentionMask) -> Iterator["_Block"]:
        """Cut the queries of each segment with queries and keys into blocks."""
        row = column = 0
        for queries, keys in zip(mask.queries.lengths, mask.keys.lengths, strict=True):
            size = max(1, self._block_scores // (heads.q_TND.shape[1] * max(1, keys)))
            for first in range(0, queries if keys else 0, size):
                last = min(first + size, queries)
                # No query of the block sees a key after the block's last query.
                visible = last if mask.causal else keys
                yield _Block(
                    rows=slice(row + first, row + last),
                    columns=slice(column, column + visible),
                    diagonal=first + 1 if mask.causal else None,
                )
            row, column = row + queries, column + keys


class _Block(NamedTuple):
    """Queries of one segment and the keys visible to them.

    Attributes:
        rows: Rows of the queries.
        columns: Rows of the keys.
        diagonal: Index in `columns` of the first masked key of the first query; each later query sees one
            more key. None if every query sees every key.
    """

    rows: slice
    columns: slice
    diagonal: int | None


def _grouped(heads: Heads, block: _Block) -> Heads:
    """Select one block in the wide dtype, with query heads grouped by their key/value head."""
    wide = wide_dtype(heads.q_TND.dtype)
    parts = (block.rows, block.columns, block.columns)
    q, k, v = (x[part].to(wide) for x, part in zip(heads, parts, strict=True))
    return Heads(q.unflatten(1, (k.shape[1], -1)), k, v)


def _scores(q_lKGD: Tensor, k_sKD: Tensor, diagonal: int | None) -> Tensor:
    score_KGls = torch.einsum("lkgd,skd->kgls", q_lKGD, k_sKD) * _scale(q_lKGD)
    if diagonal is not None:
        later = torch.ones(score_KGls.shape[-2:], dtype=torch.bool, device=q_lKGD.device).triu(diagonal)
        score_KGls.masked_fill_(later, -math.inf)
    return score_KGls


def _scale(q_lKGD: Tensor) -> float:
    return float(q_lKGD.shape[-1] ** -0.5)
