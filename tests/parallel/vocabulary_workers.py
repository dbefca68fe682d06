"""What the ranks of test_vocabulary.py do."""

import torch.distributed as dist
from torch import Tensor

from hydraulis.parallel.tensor import split_range
from hydraulis.parallel.vocabulary import vocab_parallel_loss


def loss_and_logit_gradient(logits_TV: Tensor, target_T: Tensor, denominator: int) -> tuple[Tensor, Tensor]:
    rows = split_range(logits_TV.shape[1], dist.get_world_size(), dist.get_rank())
    logits_Tv = logits_TV[:, rows.start : rows.stop].clone().requires_grad_()
    loss = vocab_parallel_loss(logits_Tv, target_T, denominator, rows.start, dist.group.WORLD)
    (3.0 * loss).backward()
    assert logits_Tv.grad is not None
    return loss.detach(), logits_Tv.grad
