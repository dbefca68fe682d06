"""Head and cross entropy in one function over chunks of tokens, without the logits of the whole micro-batch.

On the CPU a chunk has at most as many logits as the micro-batch has hidden values, or `MIN_CHUNK` tokens. On
CUDA, where each chunk also reads and writes the head's whole gradient, a chunk has at least `MIN_CUDA_CHUNK`
tokens, and less than twice as many, unless `MAX_CUDA_LOGITS` bytes of logits demand fewer.

The gradients of a chunk are computed together with its logits, so nothing is computed twice. Saved for
backward are the gradients of the hidden states and of the head, if it is not frozen; backward adds the latter
to `weight.grad` in one pass. 1,024 tokens of width 256 with a vocabulary of 131,072 took 138 MiB and 3.8 s,
instead of 1,414 MiB and 4.7 s for whole logits (float32, one CPU core).

If the vocabulary is split over a tensor group, two all-reduces of O(tokens) numbers per chunk (the maximum;
the sum of exponentials with the target's logit) replace a gather of O(tokens V).

Legend: T tokens of the packed micro-batch, t = T/tp tokens of this rank, c tokens of a chunk, H hidden, V
vocabulary, v vocabulary rows of this rank.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.errors import InvalidInputError
from hydraulis.model.leaves import PLAIN_LOSS, LossKernels
from hydraulis.model.sequences import IGNORE_INDEX
from hydraulis.model.tensors import add_product_, wide_dtype, wide_product
from hydraulis.parallel.collectives import all_gather_tokens

MIN_CHUNK = 128
"""Least tokens of a full chunk; with fewer, reading the head's weight limits the matrix product."""

MIN_CUDA_CHUNK = 2048
"""Least tokens of a chunk on CUDA, so that adding to the head's gradient takes less time than its product.

A chunk of c tokens takes 2 c operations and 8 bytes of traffic per element of that gradient. At 600 TFLOP/s
and 2.8 TB/s (H100) the product takes 2.4 times as long as the traffic for c = 2048, 0.3 times for c = 256.
"""

MAX_CUDA_LOGITS = 1 << 30
"""Most bytes of a chunk's logits on CUDA, in the dtype of the loss."""


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyShare:
    """The vocabulary rows of this rank.

    Attributes:
        size: Rows of the whole vocabulary, V.
        start: First row of this rank.
        group: Tensor group; None for one rank, which has all rows.
        adds_to_gradient: Whether backward adds the head's gradient to `weight.grad` directly. Otherwise it
            returns it, and autograd adds it behind the hooks of the weight's own gradient.
    """

    size: int
    start: int
    group: dist.ProcessGroup | None
    adds_to_gradient: bool = False

    @property
    def most_rows(self) -> int:
        """Largest number of rows on any rank, the same number on every rank."""
        return -(-self.size // (1 if self.group is None else self.group.size()))


def vocab_parallel_loss(
    hidden_tH: Tensor,
    weight_vH: Tensor,
    target_T: Tensor,
    denominator: int,
    share: VocabularyShare,
    kernels: LossKernels = PLAIN_LOSS,
) -> Tensor:
    """Return this micro-batch's addend of the loss, the same value on every rank of the group.

    The addend is the cross entropy of the head's logits, summed over the targets and divided by the global
    batch's one denominator. The losses and gradients of all micro-batches therefore add up to those of the
    mean over the global batch, for any cut into micro-batches. Each rank calls backward on its own copy.

    Args:
        hidden_tH: Hidden states of this rank's tokens, after the final norm.
        weight_vH: Head rows of this rank, at least one.
        target_T: Next token of each token, int64, or `IGNORE_INDEX`. Other values outside the vocabulary are
            not detected.
        denominator: Target tokens of the whole global batch, at least 1.
        share: Position of `weight_vH` in the vocabulary.
        kernels: Kernels of the passes over the logits.

    Returns:
        A scalar in at least float32; 0 without targets.

    Raises:
        InvalidInputError: The denominator is below 1 (code `batch_empty`).
    """
    if denominator < 1:
        message = (
            f"denominator = {denominator} must be at least 1; pass the number of target tokens of the global "
            "batch, and give the batch at least one"
        )
        raise InvalidInputError(message, code="batch_empty")
    hidden_TH = all_gather_tokens(hidden_tH, share.group)
    if not torch.is_grad_enabled():
        return _loss_alone(hidden_TH, weight_vH, target_T, share, kernels) / denominator
    return _head_loss(hidden_TH, weight_vH, target_T, denominator, share, kernels)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913 - those of a function of autograd, and its context
        ctx: Any,
        hidden_TH: Tensor,
        weight_vH: Tensor,
        target_T: Tensor,
        denominator: int,
        share: VocabularyShare,
        kernels: LossKernels,
    ) -> Tensor:
        wide = wide_dtype(hidden_TH.dtype)
        # The head may be frozen, or every parameter before the head.
        needs_hidden, needs_weight, *_ = ctx.needs_input_grad
        dhidden_TH = torch.empty_like(hidden_TH) if needs_hidden else None
        dweight_vH: Tensor | None = None
        total = hidden_TH.new_zeros((), dtype=wide)
        for chunk in _chunks(hidden_TH, share):
            hidden_cH = hidden_TH[chunk]
            logits_cv = wide_product(hidden_cH, weight_vH.T, wide)
            targets = _Targets.of_rank(target_T[chunk], share, len(weight_vH))
            loss, softmax = _cross_entropy(logits_cv, targets, share.group, kernels)
            total += loss
            dlogits_cv = kernels.gradient(
                logits_cv,
                softmax.own_max_c,
                softmax.scale_c * targets.counts_c / denominator,
                targets.column_c1,
                targets.here_c.to(wide) / denominator,
                hidden_TH.dtype,
            )
            if dhidden_TH is not None:
                torch.mm(dlogits_cv, weight_vH, out=dhidden_TH[chunk])
            if dweight_vH is not None:
                add_product_(dweight_vH, dlogits_cv.T, hidden_cH)
            elif needs_weight:
                dweight_vH = wide_product(dlogits_cv.T, hidden_cH, wide)
        ctx.save_for_backward(dhidden_TH, dweight_vH)
        ctx.weight = weight_vH if share.adds_to_gradient else None
        return total / denominator

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dhidden_TH, dweight_vH = ctx.saved_tensors
        # In place: autograd refuses a second backward through saved tensors that have changed.
        if dhidden_TH is not None:
            dhidden_TH.mul_(dloss)
        if dweight_vH is not None and ctx.weight is not None:
            ctx.weight.grad.addcmul_(dweight_vH, dloss)
            dweight_vH = None
        elif dweight_vH is not None:
            dweight_vH.mul_(dloss)
        return dhidden_TH, dweight_vH, None, None, None, None


_head_loss: Callable[..., Tensor] = _HeadLoss.apply


def _loss_alone(
    hidden_TH: Tensor, weight_vH: Tensor, target_T: Tensor, share: VocabularyShare, kernels: LossKernels
) -> Tensor:
    """Return the summed loss without gradients, which are two thirds of the work."""
    wide = wide_dtype(hidden_TH.dtype)
    total = hidden_TH.new_zeros((), dtype=wide)
    for chunk in _chunks(hidden_TH, share):
        logits_cv = wide_product(hidden_TH[chunk], weight_vH.T, wide)
        targets = _Targets.of_rank(target_T[chunk], share, len(weight_vH))
        loss, _ = _cross_entropy(logits_cv, targets, share.group, kernels)
        total += loss
    return total


def _chunks(hidden_TH: Tensor, share: VocabularyShare) -> Iterator[slice]:
    """Yield the chunks of tokens, the same on every rank of a tensor group, so that all-reduces match.

    Their sizes are nearly equal: a short chunk moves the head and its gradient as often as a long one.
    """
    tokens, width = hidden_TH.shape
    size = -(-tokens // num_chunks(tokens, width, share.most_rows, hidden_TH.dtype, hidden_TH.device))
    for start in range(0, tokens, size):
        yield slice(start, start + size)


def num_chunks(tokens: int, width: int, rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of chunks of a micro-batch.

    Args:
        tokens: Tokens of the micro-batch, at least 1.
        width: Width of the hidden states.
        rows: Largest number of vocabulary rows on any rank.
        dtype: Dtype of the hidden states.
        device: Device of the hidden states.
    """
    size = tokens * width // rows
    if device.type != "cuda":
        return -(-tokens // max(MIN_CHUNK, size))
    most = max(MIN_CHUNK, MAX_CUDA_LOGITS // (rows * wide_dtype(dtype).itemsize))
    return max(1, tokens // max(MIN_CUDA_CHUNK, size), -(-tokens // most))


class _Targets(NamedTuple):
    """The targets of a chunk.

    Attributes:
        column_c1: Column of each target in this rank's logits; 0 without one.
        here_c: Whether the target is a row of this rank.
        counts_c: Whether the token has a target.
    """

    column_c1: Tensor
    here_c: Tensor
    counts_c: Tensor

    @classmethod
    def of_rank(cls, target_c: Tensor, share: VocabularyShare, num_rows: int) -> Self:
        """Find the targets among the rows of a rank."""
        column_c = target_c - share.start
        here_c = (column_c >= 0) & (column_c < num_rows)
        return cls(column_c.masked_fill(~here_c, 0)[:, None], here_c, target_c != IGNORE_INDEX)


class _Softmax(NamedTuple):
    """The softmax of a chunk.

    Attributes:
        own_max_c: Largest logit of each token on this rank.
        scale_c: Factor of each token's exponentials on this rank.
    """

    own_max_c: Tensor
    scale_c: Tensor


def _cross_entropy(
    logits_cv: Tensor, targets: _Targets, group: dist.ProcessGroup | None, kernels: LossKernels
) -> tuple[Tensor, _Softmax]:
    """Return the sum of the loss over the targets, and the softmax; the kernels may overwrite the logits."""
    target_logit_c = logits_cv.gather(1, targets.column_c1)[:, 0]
    own_max_c, own_sum_c = kernels.exponentials(logits_cv)
    max_c = own_max_c.clone()
    _all_reduce(max_c, dist.ReduceOp.MAX, group)
    rescale_c = (own_max_c - max_c).exp()
    distance_c = (target_logit_c - max_c).masked_fill(~targets.here_c, 0)
    sums_2c = torch.stack((own_sum_c * rescale_c, distance_c))
    _all_reduce(sums_2c, dist.ReduceOp.SUM, group)
    sum_exp_c, distance_c = sums_2c
    # A mask instead of an index: the number of targets is on the device, and the host would wait for it.
    loss = (sum_exp_c.log() - distance_c).masked_fill(~targets.counts_c, 0).sum()
    return loss, _Softmax(own_max_c, rescale_c / sum_exp_c)


def _all_reduce(x: Tensor, operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None) -> None:
    if group is not None:
        dist.all_reduce(x, op=operation, group=group)
