"""The linear map that adds to its weight's float32 gradient: the gradients, the hooks, and recomputation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydraulis.config.kinds import CheckpointingKind
from hydraulis.model import linear
from hydraulis.model.decoder import Decoder
from hydraulis.model.linear import Linear
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.checkpointing import apply_checkpointing
from model.cuda_products import cuda_kernels
from small_model import small_config

__all__ = ["cuda_kernels"]

TOKENS, INPUTS, OUTPUTS = 6, 5, 4


def with_wide_gradients(module: nn.Module) -> list[str]:
    """Give every parameter a float32 gradient of zeros, and return the names whose hooks run."""
    ran: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.grad_dtype = torch.float32
        parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ran.append(name))
    return ran


def integers(*shape: int) -> Tensor:
    """Draw numbers whose products and sums have no rounding in bfloat16."""
    return torch.randint(-2, 3, shape).to(torch.bfloat16)


def maps(*, bias: bool) -> tuple[Linear, nn.Linear]:
    own = Linear(INPUTS, OUTPUTS, bias=bias).bfloat16()
    plain = nn.Linear(INPUTS, OUTPUTS, bias=bias).bfloat16()
    for parameter in own.parameters():
        parameter.data.copy_(integers(*parameter.shape))
    plain.load_state_dict(own.state_dict())
    return own, plain


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("cuda_kernels")
def test_micro_batches_add_up_to_torchs_gradients(*, bias: bool) -> None:
    own, plain = maps(bias=bias)
    ran, expected = (with_wide_gradients(module) for module in (own, plain))
    for _ in range(3):
        x_TI, dy_TO = integers(TOKENS, INPUTS), integers(TOKENS, OUTPUTS)
        inputs = [x_TI.clone().requires_grad_() for _ in range(2)]
        for module, x in zip((own, plain), inputs, strict=True):
            module(x).backward(dy_TO)
        one, other = (x.grad for x in inputs)
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
    assert sorted(ran) == sorted(expected)
    assert len(ran) == 3 * (1 + bias)
    for parameter, expected_parameter in zip(own.parameters(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        assert expected_parameter.grad is not None
        assert parameter.grad.any()
        assert torch.equal(parameter.grad, expected_parameter.grad)


@pytest.mark.usefixtures("cuda_kernels")
def test_small_gradients_are_not_rounded_away() -> None:
    own, _ = maps(bias=False)
    with_wide_gradients(own)
    # The product 256 + 1 has no bfloat16.
    x_TI = torch.tensor([[256.0] * INPUTS, [1.0] * INPUTS], dtype=torch.bfloat16)
    own(x_TI).backward(torch.ones(2, OUTPUTS, dtype=torch.bfloat16))
    assert own.weight.grad is not None
    assert own.weight.grad.eq(257).all()


@pytest.mark.parametrize("case", ["cpu", "frozen", "without a gradient", "evaluation"])
def test_other_maps_are_torchs_own(
    case: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if case != "cpu":
        request.getfixturevalue("cuda_kernels")
    monkeypatch.setattr(linear, "_linear", None)
    own, plain = maps(bias=True)
    with_wide_gradients(own)
    own.weight.requires_grad_(case != "frozen")
    if case == "without a gradient":
        own.weight.grad = None
    x_TI = integers(TOKENS, INPUTS)
    with torch.set_grad_enabled(case != "evaluation"):
        assert torch.equal(own(x_TI), plain(x_TI))


def train(checkpointing: CheckpointingKind) -> tuple[dict[str, Tensor], list[str]]:
    """Return the gradients of a small decoder, and the names whose hooks ran."""
    torch.manual_seed(0)
    model = Decoder(small_config(attention_bias=True)).bfloat16()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    ran = with_wide_gradients(model)
    apply_checkpointing(model, checkpointing)
    model(torch.arange(9) % 7, PackedSequences.from_lengths([4, 5], "cpu")).square().sum().backward()
    gradients: dict[str, Any] = {name: parameter.grad for name, parameter in model.named_parameters()}
    return gradients, ran


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_decoder_has_the_same_gradients_and_hooks(
    checkpointing: CheckpointingKind, request: pytest.FixtureRequest
) -> None:
    plain, expected = train("none")
    request.getfixturevalue("cuda_kernels")
    own, ran = train(checkpointing)
    assert sorted(ran) == sorted(expected)
    for name, gradient in plain.items():
        # Less than the rounding of the plain path to bfloat16.
        assert torch.linalg.norm(own[name] - gradient) <= 1e-2 * torch.linalg.norm(gradient), name
