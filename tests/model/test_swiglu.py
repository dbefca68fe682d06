"""The gated product: bit-identical to torch's operations, with two saved tensors."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from hydraulis.model.decoder import MLP
from hydraulis.model.swiglu import gated_product, product_not_saved
from hydraulis.runtime.memory.saved_activations import storage_key
from small_model import small_config

TOKENS = 7
BITS = [torch.float64, torch.float32, torch.bfloat16]


class PlainMLP(MLP):
    """The same feed-forward by torch's operations alone."""

    def forward(self, x_TH: Tensor) -> Tensor:
        y_TH: Tensor = self.down_proj(F.silu(self.gate_proj(x_TH)) * self.up_proj(x_TH))
        return y_TH


def pair(dtype: torch.dtype, *, bias: bool = False) -> tuple[MLP, PlainMLP]:
    config = small_config(mlp_bias=bias)
    own, plain = MLP(config).to(dtype), PlainMLP(config).to(dtype)
    plain.load_state_dict(own.state_dict())
    return own, plain


def gradients(module: nn.Module, x_TH: Tensor) -> list[Tensor]:
    """Return the result, and the gradients of the input and of the parameters, if they have one."""
    x_TH = x_TH.detach().clone().requires_grad_(x_TH.requires_grad)
    y_TH = module(x_TH)
    y_TH.backward(torch.linspace(-1, 1, y_TH.numel(), dtype=y_TH.dtype).view_as(y_TH))
    leaves = (x_TH, *module.parameters())
    return [y_TH.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def drawn(module: nn.Module) -> Tensor:
    weight = next(module.parameters())
    return torch.randn(TOKENS, weight.shape[1], dtype=weight.dtype).requires_grad_()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", BITS)
def test_results_and_gradients_are_torchs_to_the_bit(dtype: torch.dtype, *, bias: bool) -> None:
    own, plain = pair(dtype, bias=bias)
    x_TH = drawn(own)
    for ours, theirs in zip(gradients(own, x_TH), gradients(plain, x_TH), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("trained", [one for one in product((False, True), repeat=4) if any(one)])
def test_frozen_maps_and_inputs_change_nothing(trained: tuple[bool, ...]) -> None:
    own, plain = pair(torch.float64)
    x_TH = drawn(own).detach().requires_grad_(trained[0])
    for module in (own, plain):
        maps = (module.gate_proj, module.up_proj, module.down_proj)
        for linear, is_trained in zip(maps, trained[1:], strict=True):
            linear.weight.requires_grad_(is_trained)
    for ours, theirs in zip(gradients(own, x_TH), gradients(plain, x_TH), strict=True):
        assert torch.equal(ours, theirs)


def saved_widths(module: MLP, x_TH: Tensor) -> list[int]:
    """Return the elements of each saved tensor that is neither a parameter nor the input."""
    known = {x.data_ptr() for x in (x_TH, *module.parameters())}
    saved: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.data_ptr() not in known:
            saved[x.data_ptr()] = x.numel()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        module(x_TH)
    return list(saved.values())


def test_two_tensors_are_saved_instead_of_four() -> None:
    own, plain = pair(torch.float64)
    elements = TOKENS * small_config().intermediate_size
    assert saved_widths(own, drawn(own)) == 2 * [elements]
    assert saved_widths(plain, drawn(plain)) == 4 * [elements]


def test_the_product_is_gone_after_the_forward() -> None:
    own, _ = pair(torch.float64)
    products = []
    own.down_proj.register_forward_pre_hook(lambda _, args: products.append(storage_key(args[0])))
    y_TH = own(drawn(own))
    assert [one.expired() for one in products] == [True]
    y_TH.sum().backward()


def test_recomputed_layers_save_the_input_alone_and_stop_before_the_last_map() -> None:
    own, plain = pair(torch.float64)
    calls: list[int] = []
    x_TH = drawn(own)

    class Checkpointed(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x_TH: Tensor) -> Tensor:
            y_TH: Tensor = checkpoint(self.module, x_TH, use_reentrant=False)
            return y_TH

    expected = gradients(plain, x_TH)
    own.down_proj.register_forward_hook(lambda *_: calls.append(1))
    for ours, theirs in zip(gradients(Checkpointed(own), x_TH), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert len(calls) == 1


def test_a_product_without_a_gradient_is_saved_itself() -> None:
    gate_TI, up_TI = torch.randn(2, TOKENS, 3)
    weight = torch.randn(2, 3, requires_grad=True)
    product_TI = gated_product(gate_TI, up_TI)
    with product_not_saved(product_TI):
        y_TH = F.linear(product_TI, weight)
    y_TH.sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, (F.silu(gate_TI) * up_TI).sum(0).expand(2, 3))
