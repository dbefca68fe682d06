"""Puts attention over several blocks of keys together by their log-sum-exps.

Legend: T query tokens, R rows of them, N query heads, D head dim.
"""

import torch
from torch import Tensor

from hydraulis.model.attention.kernel import Attended


def widened(attended: Attended) -> Attended:
    """Give an output in the dtype of its log-sum-exp, at least float32, for others to be merged into it."""
    return Attended(attended.o_TND.to(attended.log_sum_exp_TN.dtype), attended.log_sum_exp_TN)


def merge_(total: Attended, part: Attended, rows_R: Tensor | None) -> None:
    """Merge attention over further keys into `total`, in place.

    With `m = log(exp(l) + exp(l'))` the softmax over both blocks of keys gives
    `o exp(l - m) + o' exp(l' - m)`, and its log-sum-exp is `m`.

    Args:
        total: wide; every query has seen a key in it, so that no log-sum-exp is minus infinity.
        part: of the queries at `rows_R`.
        rows_R: int64, each row once; None for all of them.
    """
    where = slice(None) if rows_R is None else rows_R
    o_RND, log_sum_exp_RN = total.o_TND[where], total.log_sum_exp_TN[where]
    merged_RN = torch.logaddexp(log_sum_exp_RN, part.log_sum_exp_TN)
    weight_RN1 = (log_sum_exp_RN - merged_RN).exp()[..., None]
    part_weight_RN1 = (part.log_sum_exp_TN - merged_RN).exp()[..., None]
    total.o_TND[where] = o_RND * weight_RN1 + part.o_TND * part_weight_RN1
    total.log_sum_exp_TN[where] = merged_RN
