"""Linear maps in float8: the rounding by its definition, products by their factors, and the maps in it."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import refused
from hydraulis import Scheme
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.config.lora import TARGETS, Adapters
from hydraulis.model.decoder import Decoder
from hydraulis.model.float8 import Quantized, quantize, require_float8, scaled_product
from hydraulis.model.linear import Linear
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.checkpointing import apply_checkpointing
from model.cuda_products import cuda_kernels
from model.operations import Operations
from small_model import small_config

__all__ = ["cuda_kernels"]

TOKENS, INPUTS, OUTPUTS = 40, 64, 48
# Dimensions that are multiples of 16 for all maps but those of keys and values.
WIDE = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 6}


def nearest(x: Tensor) -> Tensor:
    """Return the nearest numbers of e4m3 by comparing with all of them, the even code for two as near."""
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes.view(torch.float8_e4m3fn).double()
    distance = (x.double()[..., None] - numbers).abs().nan_to_num(torch.inf)
    is_nearest = distance == distance.amin(-1, keepdim=True)
    preferred = is_nearest.double() * (1 + (codes % 2 == 0))
    return numbers[preferred.argmax(-1)]


def test_elements_are_the_nearest_of_their_rows_scale() -> None:
    x_RC = torch.randn(9, 50) * torch.logspace(-9, 9, 9)[:, None]
    # A largest element that is a power of two, or just above, times 448.
    x_RC[1:3, 0] = 448 * torch.tensor([2.0**9, 2.0**9 * (1 + 2**-20)])
    x_RC[1:3, 1:] = torch.randn(2, 49)
    found = quantize(x_RC)
    fraction, exponent = torch.frexp(x_RC.double().abs().amax(-1, keepdim=True) / 448)
    # 2**k itself is its own next power of two.
    expected = torch.exp2((exponent - fraction.eq(0.5).int()).double())
    assert torch.equal(found.scale_R1.double(), expected)
    assert torch.equal(found.value_RC.double(), nearest(x_RC.double() / expected))
    assert torch.equal(found.widened(torch.float64), found.value_RC.double() * expected)


def test_a_factor_times_its_scale_has_no_rounding_in_bfloat16() -> None:
    found = quantize(torch.randn(30, 100).bfloat16())
    assert torch.equal(found.widened(torch.bfloat16).double(), found.widened(torch.float64))


def test_a_row_of_zeros_stays_zero_and_a_broken_row_becomes_no_number() -> None:
    x_RC = torch.zeros(3, 16)
    x_RC[1, 4], x_RC[2, 5] = torch.inf, torch.nan
    whole = quantize(x_RC).widened(torch.float32)
    assert whole[0].eq(0).all()
    assert whole[1:].isnan().any(-1).all()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def maps(*, bias: bool) -> tuple[Linear, nn.Linear]:
    own = Linear(INPUTS, OUTPUTS, bias=bias).bfloat16()
    plain = nn.Linear(INPUTS, OUTPUTS, bias=bias).bfloat16()
    plain.load_state_dict(own.state_dict())
    own.quantize = quantize
    return own, plain


def both_ways(module: nn.Module, x_TI: Tensor, dy_TO: Tensor) -> list[Tensor]:
    """Return the result, and the gradients of the input and of the parameters."""
    x_TI = x_TI.clone().requires_grad_()
    y_TO = module(x_TI)
    y_TO.backward(dy_TO)
    leaves = [x_TI, *module.parameters()]
    return [y_TO.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("bias", [False, True])
def test_a_map_and_its_gradients_are_near_those_in_bfloat16(*, bias: bool) -> None:
    own, plain = maps(bias=bias)
    x_TI, dy_TO = drawn(TOKENS, INPUTS), drawn(TOKENS, OUTPUTS)
    found, expected = both_ways(own, x_TI, dy_TO), both_ways(plain, x_TI, dy_TO)
    assert len(found) == len(expected) == 3 + bias
    # e4m3 rounds to 4 bits: by 2.6 % in the root mean square, in both factors.
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert 0.01 < relative(ours, theirs) < 0.06
    for ours, theirs in zip(found[2:], expected[2:], strict=True):
        assert torch.equal(ours, theirs)


def test_products_are_those_of_the_rounded_factors() -> None:
    own, _ = maps(bias=True)
    x_TI, dy_TO = drawn(TOKENS, INPUTS), drawn(TOKENS, OUTPUTS)
    y_TO, dx_TI = both_ways(own, x_TI, dy_TO)[:2]

    def exact(x_RC: Tensor) -> Tensor:
        return quantize(x_RC).widened(torch.float64)

    weight_OI = own.weight.detach()
    # The products are rounded to bfloat16.
    assert relative(y_TO, exact(x_TI) @ exact(weight_OI).T + own.bias.detach().double()) < 3e-3
    assert relative(dx_TI, exact(dy_TO) @ exact(weight_OI.T.contiguous()).T) < 3e-3


@pytest.mark.usefixtures("cuda_kernels")
def test_the_weights_gradient_adds_to_a_float32_one_without_rounding() -> None:
    own, _ = maps(bias=False)
    own.weight.grad_dtype = torch.float32
    own.weight.grad = torch.ones(OUTPUTS, INPUTS)
    ran: list[int] = []
    own.weight.register_post_accumulate_grad_hook(lambda _: ran.append(1))
    x_TI, dy_TO = drawn(TOKENS, INPUTS), drawn(TOKENS, OUTPUTS)
    own(x_TI).backward(dy_TO)
    assert own.weight.grad is not None
    torch.testing.assert_close(own.weight.grad, 1 + dy_TO.float().T @ x_TI.float(), rtol=1e-5, atol=1e-4)
    assert ran == [1]


def test_a_frozen_map_saves_no_input() -> None:
    own, _ = maps(bias=False)
    own.weight.requires_grad_(False)
    saved: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    x_TI = drawn(TOKENS, INPUTS).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y_TO = own(x_TI)
    assert saved == []
    y_TO.backward(drawn(TOKENS, OUTPUTS))
    assert x_TI.grad is not None
    assert x_TI.grad.any()


def test_evaluation_multiplies_in_float8_too() -> None:
    own, plain = maps(bias=False)
    x_TI = drawn(TOKENS, INPUTS)
    with torch.no_grad():
        evaluated = own(x_TI)
    assert torch.equal(evaluated, own(x_TI).detach())
    assert not torch.equal(evaluated, plain(x_TI))


def decoder(**changes: object) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(small_config(**(WIDE | changes))).bfloat16()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def gradients(model: Decoder) -> dict[str, Tensor]:
    model(torch.arange(9) % 7, PackedSequences.from_lengths([4, 5], "cpu")).square().sum().backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def test_maps_of_layers_take_part_where_the_products_have_a_kernel() -> None:
    model = decoder(adapters=Adapters(rank=16, alpha=1.0, targets=TARGETS))
    model.use_float8(quantize)
    names = {name for name, one in model.named_modules() if getattr(one, "quantize", None) is not None}
    # Keys and values have 4 x 6 rows, no multiple of 16; adapters and the head take no part.
    maps_of_layer = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert names == {f"layers.{layer}.{name}" for layer in range(3) for name in maps_of_layer}


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_recomputation_changes_no_bit_and_a_decoder_is_near_the_one_in_bfloat16(
    checkpointing: CheckpointingKind,
) -> None:
    plain, expected, found = gradients(decoder()), decoder(), decoder()
    expected.use_float8(quantize)
    found.use_float8(quantize)
    apply_checkpointing(found, Scheme("<1>").with_checkpointing(checkpointing))
    reference, ours = gradients(expected), gradients(found)
    assert reference.keys() == ours.keys() == plain.keys()
    for name, gradient in reference.items():
        assert torch.equal(gradient, ours[name]), name
        # Three layers add up the roundings of one.
        assert relative(gradient, plain[name]) < 0.25, name
    assert any(relative(gradient, plain[name]) > 0.01 for name, gradient in reference.items())


@pytest.mark.parametrize("is_transposed", [False, True])
def test_on_cuda_torch_takes_the_factors_in_their_layouts(*, is_transposed: bool) -> None:
    with FakeTensorMode():
        x_TI = torch.empty(TOKENS, INPUTS, dtype=torch.bfloat16, device="cuda")
        # A rank keeps the weights that tensor ranks split by columns transposed.
        weight_OI = x_TI.new_empty(INPUTS, OUTPUTS).t() if is_transposed else x_TI.new_empty(OUTPUTS, INPUTS)
        bias_O = x_TI.new_empty(OUTPUTS)
        with Operations() as operations:
            y_TO = scaled_product(quantize(x_TI), quantize(weight_OI), torch.bfloat16, bias_O)
            dx_TI = scaled_product(quantize(y_TO), quantize(weight_OI.t().contiguous()), torch.bfloat16)
    assert (y_TO.shape, y_TO.dtype) == ((TOKENS, OUTPUTS), torch.bfloat16)
    assert (dx_TI.shape, dx_TI.dtype) == ((TOKENS, INPUTS), torch.bfloat16)
    assert operations.names.count("aten._scaled_mm.default") == 2
    assert not {"aten.mm.default", "aten.addmm.default"} & set(operations.names)


def test_another_layout_is_refused_without_a_device_too() -> None:
    """Torch's shape function sees the layouts, so that the test before can fail."""
    with FakeTensorMode():
        left = quantize(torch.empty(32, 32, dtype=torch.bfloat16, device="cuda"))
        factors = left.value_RC, left.value_RC, left.scale_R1, left.scale_R1.t()
        with pytest.raises(RuntimeError, match="mat2 must be col"):
            torch.ops.aten._scaled_mm.default(*factors, None, None, torch.bfloat16)


@pytest.mark.parametrize(("capability", "is_refused"), [((8, 0), True), ((8, 9), False), ((9, 0), False)])
def test_older_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *, is_refused: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a device")
    require_float8(torch.device("cpu"))
    device = torch.device("cuda", 0)
    if is_refused:
        with refused("device_missing", "train.float8", "a device has 8.0"):
            require_float8(device)
    else:
        require_float8(device)


def test_a_factor_is_half_of_bfloat16() -> None:
    found = quantize(drawn(TOKENS, INPUTS))
    assert isinstance(found, Quantized)
    assert found.value_RC.nbytes == TOKENS * INPUTS
