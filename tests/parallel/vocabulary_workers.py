"""The function that the ranks of test_vocabulary.py run."""

import torch.distributed as dist
from torch import Tensor

from hydraulis.model.leaves import PLAIN_LOSS, LossKernels, compiled_leaves
from hydraulis.parallel.tensor import split_range
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss


def loss_and_gradients(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    denominator: int,
    kernels: LossKernels = PLAIN_LOSS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and 3 times the gradients of this rank's tokens and head rows."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    rows = split_range(len(weight_VH), num_ranks, rank)
    share = VocabularyShare(len(weight_VH), rows.start, dist.group.WORLD)
    hidden_tH = hidden_TH.chunk(num_ranks)[rank].clone().requires_grad_()
    weight_vH = weight_VH[rows.start : rows.stop].clone().requires_grad_()
    loss = vocab_parallel_loss(hidden_tH, weight_vH, target_T, denominator, share, kernels)
    (3.0 * loss).backward()
    assert hidden_tH.grad is not None
    assert weight_vH.grad is not None
    return loss.detach(), hidden_tH.grad, weight_vH.grad


def by_kernels(
    hidden_TH: Tensor, weight_VH: Tensor, target_T: Tensor, denominator: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute them by the compiled kernels."""
    kernels = compiled_leaves(hidden_TH.device).loss
    return loss_and_gradients(hidden_TH, weight_VH, target_T, denominator, kernels)
