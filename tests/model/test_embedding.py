"""The embedding: with a kernel for its gradient, it has the gradient and the hooks of torch's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydraulis.model.embedding import Embedding

VOCABULARY, WIDTH = 7, 4


def add_rows(total_VH: Tensor, token_T: Tensor, addend_TH: Tensor) -> None:
    total_VH.index_add_(0, token_T, addend_TH.to(total_VH.dtype))


def embedding(kernel: Any) -> tuple[Embedding, list[str]]:
    """Make an embedding with a gradient of ones, and a list to which its hook adds."""
    found, ran = Embedding(VOCABULARY, WIDTH), []
    found.load_state_dict({"weight": torch.arange(VOCABULARY * WIDTH).view(VOCABULARY, WIDTH) / 8})
    found.add_rows = kernel
    found.weight.grad = torch.ones_like(found.weight)
    found.weight.register_post_accumulate_grad_hook(lambda _: ran.append("hook"))
    return found, ran


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_a_kernel_adds_the_gradients_of_micro_batches(num_micro_batches: int) -> None:
    own, ran = embedding(add_rows)
    plain, expected = embedding(None)
    for _ in range(num_micro_batches):
        token_T, dx_TH = torch.randint(VOCABULARY, (9,)), torch.randint(-3, 4, (9, WIDTH)).float()
        results = [module(token_T) for module in (own, plain)]
        assert torch.equal(*results)
        for result in results:
            result.backward(dx_TH)
    assert own.weight.grad is not None
    assert plain.weight.grad is not None
    assert torch.equal(own.weight.grad, plain.weight.grad)
    assert not torch.equal(own.weight.grad, torch.ones_like(own.weight.grad))
    assert ran == expected == ["hook"] * num_micro_batches


def test_a_weight_without_a_gradient_takes_autograds() -> None:
    own, _ = embedding(add_rows)
    own.weight.grad = None
    own(torch.tensor([2, 2])).sum().backward()
    assert own.weight.grad is not None
    assert own.weight.grad[2].tolist() == [2.0] * WIDTH


def test_a_frozen_weight_has_no_gradient() -> None:
    own, _ = embedding(add_rows)
    own.weight = nn.Parameter(own.weight.detach(), requires_grad=False)
    own.weight.grad = torch.ones_like(own.weight)
    assert not own(torch.tensor([1])).requires_grad
