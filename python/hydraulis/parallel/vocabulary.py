"""Cross entropy on logits whose vocabulary is split over a tensor group; the whole logits exist nowhere.

Two all-reduces of O(T) numbers (the maximum; the sum of exponentials with the target's logit) replace a
gather of O(T V).

Legend: T tokens of the packed micro-batch, v vocabulary rows of this rank.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.model.loss import IGNORE_INDEX, check_denominator, token_loss


def vocab_parallel_loss(
    logits_Tv: Tensor, target_T: Tensor, denominator: int, vocab_start: int, group: dist.ProcessGroup | None
) -> Tensor:
    """Return `token_loss` of the joined logits, the same value on every rank of the group.

    Each rank calls backward on its own copy, and gets the gradient of its own logits only.

    Args:
        logits_Tv: scores of this rank's vocabulary rows, at least one.
        target_T: int64, the token that follows each token in the whole vocabulary, or `IGNORE_INDEX`.
            Other values outside the vocabulary are not noticed.
        denominator: target tokens of the whole global batch, at least 1.
        vocab_start: this rank's first vocabulary row.
        group: the tensor group, or None for one rank.

    Returns:
        A scalar in at least float32; 0 if no target counts.

    Raises:
        InvalidInputError: the denominator is below 1 (code `loss_denominator`).
    """
    if group is None:
        return token_loss(logits_Tv, target_T, denominator)
    check_denominator(denominator)
    return _split_loss(logits_Tv, target_T, denominator, vocab_start, group)


class _VocabParallelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_Tv: Tensor,
        target_T: Tensor,
        denominator: int,
        vocab_start: int,
        group: dist.ProcessGroup,
    ) -> Tensor:
        wide_Tv = logits_Tv.to(torch.promote_types(logits_Tv.dtype, torch.float32))
        max_T = wide_Tv.amax(dim=-1)
        dist.all_reduce(max_T, op=dist.ReduceOp.MAX, group=group)
        shifted_Tv = wide_Tv - max_T[:, None]

        column_T, here_T = _own_columns(target_T, vocab_start, logits_Tv.shape[1])
        target_logit_T = shifted_Tv.gather(1, column_T[:, None])[:, 0].masked_fill(~here_T, 0)
        exp_Tv = shifted_Tv.exp_()
        sums_2T = torch.stack((exp_Tv.sum(dim=-1), target_logit_T))
        dist.all_reduce(sums_2T, group=group)
        sum_exp_T, target_logit_T = sums_2T

        softmax_Tv = exp_Tv.div_(sum_exp_T[:, None])
        ctx.save_for_backward(softmax_Tv, target_T)
        ctx.denominator, ctx.vocab_start, ctx.dtype = denominator, vocab_start, logits_Tv.dtype
        counts_T = target_T != IGNORE_INDEX
        total: Tensor = (sum_exp_T.log() - target_logit_T)[counts_T].sum()
        return total / denominator

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        softmax_Tv, target_T = ctx.saved_tensors
        column_T, here_T = _own_columns(target_T, ctx.vocab_start, softmax_Tv.shape[1])
        one_hot = here_T.to(softmax_Tv.dtype)[:, None]
        grad_Tv = softmax_Tv.scatter_add(1, column_T[:, None], -one_hot)
        counts_T = target_T != IGNORE_INDEX
        scale_T = counts_T * (dloss / ctx.denominator)
        return (grad_Tv * scale_T[:, None]).to(ctx.dtype), None, None, None, None


_split_loss: Callable[[Tensor, Tensor, int, int, dist.ProcessGroup], Tensor] = _VocabParallelLoss.apply


def _own_columns(target_T: Tensor, vocab_start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return each target's column in this rank's logits (0 if it has none here), and whether it has one."""
    column_T = target_T - vocab_start
    here_T = (column_T >= 0) & (column_T < num_columns)
    return column_T.masked_fill(~here_T, 0), here_T
