"""Attention as it is defined: every score of a segment at once, on any device.

It stands in for flash attention on CUDA in float32 and float64, which flash kernels do not take: what is
trained or compared in full precision there is small. Its scores take `N L^2` numbers for a segment of L
tokens, and again in backward.

Legend: T query tokens, S key tokens, N query heads, K key/value heads, G = N/K query heads of each, D head
dim; l and s are the query and key tokens of one segment.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hydraulis.config.attention import AttentionKind
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads

_DTYPES = (torch.float32, torch.float64)


class PlainAttention:
    """A masked softmax over the scores of each segment, in at least float32."""

    name = "plain attention"
    kind: AttentionKind = "plain"

    def refusal(self, q_TND: Tensor) -> str | None:
        """Refuse what a flash kernel should take: other devices than CUDA, and half precision."""
        fits = q_TND.device.type == "cuda" and q_TND.dtype in _DTYPES
        return None if fits else "it stands in on cuda for float32 and float64"

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        """Attend, segment by segment."""
        o_TND = torch.zeros_like(heads.q_TND, memory_format=torch.contiguous_format)
        wide = torch.promote_types(o_TND.dtype, torch.float32)
        log_sum_exp_TN = o_TND.new_full(o_TND.shape[:2], -math.inf, dtype=wide)
        for rows, columns in _segments(mask):
            q_lKGD, k_sKD, v_sKD = _grouped(heads, rows, columns)
            score_KGls = _scores(q_lKGD, k_sKD, causal=mask.causal)
            log_sum_exp_KGl = score_KGls.logsumexp(-1)
            weight_KGls = (score_KGls - log_sum_exp_KGl[..., None]).exp()
            o_TND[rows] = torch.einsum("kgls,skd->lkgd", weight_KGls, v_sKD).flatten(1, 2)
            log_sum_exp_TN[rows] = log_sum_exp_KGl.flatten(0, 1).T
        return Attended(o_TND, log_sum_exp_TN)

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        """Give the gradients of the heads, segment by segment."""
        gradients = Heads(*(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in heads))
        num_groups = heads.k_SKD.shape[1]
        for rows, columns in _segments(mask):
            q_lKGD, k_sKD, v_sKD = _grouped(heads, rows, columns)
            log_sum_exp_KGl = attended.log_sum_exp_TN[rows].T.unflatten(0, (num_groups, -1))
            weight_KGls = (_scores(q_lKGD, k_sKD, causal=mask.causal) - log_sum_exp_KGl[..., None]).exp()
            do_lKGD, o_lKGD = (
                x[rows].unflatten(1, (num_groups, -1)).to(weight_KGls.dtype) for x in (do_TND, attended.o_TND)
            )
            gradients.v_SKD[columns] = torch.einsum("kgls,lkgd->skd", weight_KGls, do_lKGD)
            dweight_KGls = torch.einsum("lkgd,skd->kgls", do_lKGD, v_sKD)
            # The gradient of a softmax: minus what the whole row gives back, be its other keys elsewhere.
            row_KGl = (do_lKGD * o_lKGD).sum(-1).permute(1, 2, 0)
            dscore_KGls = weight_KGls * (dweight_KGls - row_KGl[..., None]) * _scale(q_lKGD)
            gradients.q_TND[rows] = torch.einsum("kgls,skd->lkgd", dscore_KGls, k_sKD).flatten(1, 2)
            gradients.k_SKD[columns] = torch.einsum("kgls,lkgd->skd", dscore_KGls, q_lKGD)
        return gradients


def _segments(mask: AttentionMask) -> Iterator[tuple[slice, slice]]:
    """Give the query and the key tokens of each segment that has both."""
    row = column = 0
    for queries, keys in zip(mask.queries.lengths, mask.keys.lengths, strict=True):
        if queries and keys:
            yield slice(row, row + queries), slice(column, column + keys)
        row, column = row + queries, column + keys


def _grouped(heads: Heads, rows: slice, columns: slice) -> Heads:
    """Take one segment, wide, its query heads grouped by the key/value head that they use."""
    wide = torch.promote_types(heads.q_TND.dtype, torch.float32)
    q, k, v = (x[part].to(wide) for x, part in zip(heads, (rows, columns, columns), strict=True))
    return Heads(q.unflatten(1, (k.shape[1], -1)), k, v)


def _scores(q_lKGD: Tensor, k_sKD: Tensor, *, causal: bool) -> Tensor:
    score_KGls = torch.einsum("lkgd,skd->kgls", q_lKGD, k_sKD) * _scale(q_lKGD)
    if causal:
        later = torch.ones(score_KGls.shape[-2:], dtype=torch.bool, device=q_lKGD.device).triu(1)
        score_KGls.masked_fill_(later, -math.inf)
    return score_KGls


def _scale(q_lKGD: Tensor) -> float:
    return float(q_lKGD.shape[-1] ** -0.5)
