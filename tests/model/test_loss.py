import math

import pytest
import torch

from hydraulis.errors import InvalidInputError
from hydraulis.model.loss import IGNORE_INDEX, token_loss


def test_it_sums_the_targets_that_count_and_divides_by_the_denominator() -> None:
    logits_TV = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    target_T = torch.tensor([3, IGNORE_INDEX, 8, 0])
    loss = token_loss(logits_TV, target_T, denominator=10)

    softmax_TV = logits_TV.detach().exp() / logits_TV.detach().exp().sum(-1, keepdim=True)
    expected = -sum(math.log(softmax_TV[t, v]) for t, v in ((0, 3), (2, 8), (3, 0))) / 10
    assert loss.item() == pytest.approx(expected, abs=1e-14)

    loss.backward()
    one_hot_TV = torch.zeros(4, 9, dtype=torch.float64)
    one_hot_TV[[0, 2, 3], [3, 8, 0]] = 1.0
    expected_TV = (softmax_TV - one_hot_TV) / 10
    expected_TV[1] = 0.0
    assert logits_TV.grad is not None
    torch.testing.assert_close(logits_TV.grad, expected_TV, rtol=1e-12, atol=1e-14)


def test_micro_batches_add_up_to_the_batch() -> None:
    logits_TV = torch.randn(7, 5, dtype=torch.float64)
    target_T = torch.tensor([0, 1, IGNORE_INDEX, 2, 3, 4, IGNORE_INDEX])
    parts = [token_loss(logits_TV[cut], target_T[cut], 5) for cut in (slice(0, 3), slice(3, 7))]
    assert torch.stack(parts).sum().item() == pytest.approx(
        token_loss(logits_TV, target_T, 5).item(), abs=1e-14
    )


def test_no_counted_target_gives_zero_and_zero_gradients() -> None:
    logits_TV = torch.randn(3, 5, requires_grad=True)
    loss = token_loss(logits_TV, torch.full((3,), IGNORE_INDEX), 8)
    loss.backward()
    assert loss.item() == 0.0
    assert logits_TV.grad is not None
    assert not logits_TV.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_computed_in_at_least_float32(dtype: torch.dtype) -> None:
    logits_TV = torch.randn(3, 5, dtype=dtype)
    loss = token_loss(logits_TV, torch.tensor([0, 1, 2]), 3)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    expected = token_loss(logits_TV.double(), torch.tensor([0, 1, 2]), 3)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_without_targets_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="denominator = 0") as caught:
        token_loss(torch.randn(1, 2), torch.tensor([0]), 0)
    assert caught.value.code == "loss_denominator"
