import pytest
import torch
from torch import Tensor

from hydraulis.errors import InvalidInputError
from hydraulis.model.loss import IGNORE_INDEX, token_loss
from hydraulis.parallel.vocabulary import vocab_parallel_loss
from parallel.vocabulary_workers import loss_and_logit_gradient
from ranks import run_ranks

VOCABULARY = 37
SOME = torch.tensor([0, 8, 9, 36, IGNORE_INDEX, 17])
NONE = torch.full((6,), IGNORE_INDEX)


@pytest.mark.parametrize("target_T", [SOME, NONE], ids=["some", "none"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_it_equals_token_loss_of_the_joined_logits(world_size: int, target_T: Tensor) -> None:
    # Large logits: without the common maximum their exponentials overflow.
    logits_TV = (1000.0 * torch.randn(6, VOCABULARY, dtype=torch.float64)).requires_grad_()
    results = run_ranks(world_size, loss_and_logit_gradient, logits_TV.detach(), target_T, 11)

    expected = token_loss(logits_TV, target_T, 11)
    (3.0 * expected).backward()
    gradient_TV = torch.cat([gradient for _, gradient in results], dim=1)
    for loss, _ in results:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_TV, logits_TV.grad, rtol=1e-12, atol=1e-12)


def test_bfloat16_logits_give_a_float32_loss_and_bfloat16_gradients() -> None:
    logits_TV = torch.randn(6, VOCABULARY, dtype=torch.bfloat16)
    loss, gradient = run_ranks(2, loss_and_logit_gradient, logits_TV, SOME, 5)[0]
    assert loss.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(loss, token_loss(logits_TV, SOME, 5), rtol=1e-5, atol=1e-5)


def test_without_a_group_it_is_token_loss() -> None:
    logits_TV = torch.randn(6, VOCABULARY)
    assert vocab_parallel_loss(logits_TV, SOME, 5, 0, None).equal(token_loss(logits_TV, SOME, 5))


def test_a_batch_without_targets_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="denominator = 0"):
        vocab_parallel_loss(torch.randn(6, VOCABULARY), SOME, 0, 0, None)
