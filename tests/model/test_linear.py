"""Linear maps: gradients, hooks and recomputation of the plain one; the adapted one equals PEFT's."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from torch import Tensor, nn

from helpers import at_least
from hydraulis import Scheme
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.config.lora import TARGETS, Adapters, AdapterTarget
from hydraulis.model import linear
from hydraulis.model.decoder import Decoder
from hydraulis.model.init import draw_elements
from hydraulis.model.linear import Linear, map_together
from hydraulis.model.parameters import is_adapter, named_rows, parameter_rows, row_parallel_modules
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.checkpointing import apply_checkpointing
from model.cuda_products import cuda_kernels
from model.operations import Operations
from small_model import (
    FAMILIES,
    build_decoder,
    count_targets,
    logits_of,
    random_tokens,
    small_config,
    token_loss,
)

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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("cuda_kernels")
def test_maps_of_the_same_tokens_equal_torchs_maps(*, bias: bool) -> None:
    pairs = [maps(bias=bias) for _ in range(3)]
    x_TI, dys = integers(TOKENS, INPUTS), [integers(TOKENS, OUTPUTS) for _ in pairs]
    inputs = [x_TI.clone().requires_grad_() for _ in range(2)]
    ran = [with_wide_gradients(nn.ModuleList(side)) for side in zip(*pairs, strict=True)]
    with Operations() as operations:
        outputs = map_together(inputs[0], *(own for own, _ in pairs))
        torch.autograd.backward(outputs, dys)
    # The input's gradient is added up by the products.
    assert not [name for name in operations.names if name.startswith("aten.add.")]
    torch.autograd.backward([plain(inputs[1]) for _, plain in pairs], dys)
    one, other = (x.grad for x in inputs)
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)
    assert sorted(ran[0]) == sorted(ran[1]) != []
    for own, plain in pairs:
        for ours, theirs in zip(own.parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert ours.grad.any()
            assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.usefixtures("cuda_kernels")
def test_maps_of_another_kind_are_applied_one_by_one() -> None:
    (own, _), (frozen, _) = maps(bias=False), maps(bias=False)
    with_wide_gradients(nn.ModuleList([own, frozen]))
    frozen.weight.requires_grad_(False)
    adapted = linear.AdaptedLinear(
        INPUTS, OUTPUTS, Adapters(rank=2, alpha=1.0, targets=TARGETS), bias=False
    ).bfloat16()
    with_wide_gradients(adapted)
    x_TI = integers(TOKENS, INPUTS)
    for other in (frozen, adapted):
        expected = own(x_TI), other(x_TI)
        found = map_together(x_TI, own, other)
        assert torch.equal(torch.stack(found), torch.stack(expected))
        assert found[0].grad_fn is not found[1].grad_fn


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
    monkeypatch.setattr(linear, "_linear_maps", None)
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
    apply_checkpointing(model, Scheme("<1>").with_checkpointing(checkpointing))
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


LENGTHS = [9, 4, 7]


def with_peft(base: Decoder, adapters: Adapters, values: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """Let PEFT adapt the decoder in place; return its trained parameters by the names of this package."""
    alpha: Any = adapters.alpha
    given = PeftConfig(
        r=adapters.rank, lora_alpha=alpha, target_modules=list(adapters.targets), lora_dropout=0.0
    )
    inject_adapter_in_model(given, base)
    base.double()
    trained = {
        name.replace(".default.", "."): parameter
        for name, parameter in base.named_parameters()
        if parameter.requires_grad
    }
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(values[name])
    return trained


def adapter_values(model: Decoder) -> dict[str, Tensor]:
    """Draw an A and a B other than zero for every adapter of the model, and set them."""
    generator = torch.Generator().manual_seed(4)
    values = {}
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            values[name] = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(values[name])
    return values


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "down_proj")])
def test_loss_and_gradients_equal_pefts(family: str, targets: tuple[AdapterTarget, ...]) -> None:
    adapters = Adapters(rank=3, alpha=5.0, targets=targets)
    config = small_config(**FAMILIES[family], adapters=adapters)
    adapted, base = build_decoder(config), build_decoder(config.base)
    values = adapter_values(adapted)
    of_peft = with_peft(base, adapters, values)
    assert values.keys() == of_peft.keys()
    assert len(values) == 2 * len(targets) * config.num_hidden_layers
    token_T, target_T = random_tokens(config, LENGTHS, padded=False)
    losses = []
    for model in (adapted, base):
        logits_TV = logits_of(model, token_T, PackedSequences.from_lengths(LENGTHS, "cpu"))
        loss = token_loss(logits_TV, target_T, count_targets(target_T))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    ours = dict(adapted.named_parameters())
    for name, parameter in of_peft.items():
        torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=1e-10, atol=1e-14)


def test_an_adapter_follows_the_parameters_of_its_linear_map() -> None:
    config = small_config(
        **FAMILIES["every bias"], adapters=Adapters(rank=2, alpha=4.0, targets=("q_proj", "o_proj"))
    )
    of_decoder = [(name, tuple(one.shape)) for name, one in build_decoder(config).named_parameters()]
    assert [(row.name, row.shape) for row in named_rows(config).values()] == at_least(40, of_decoder)


def test_an_adapter_is_split_with_its_linear_map() -> None:
    config = small_config(adapters=Adapters(rank=2, alpha=4.0, targets=TARGETS))
    rows = {row.name.removeprefix("layers.*."): row for row in parameter_rows(config)}
    outputs = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}
    for module, names in outputs.items():
        for name in names:
            weight, a, b = (rows[f"{module}.{name}.{leaf}weight"] for leaf in ("", "lora_A.", "lora_B."))
            assert (a.split_dim, a.split_units) == (None, 1)
            assert (b.split_dim, b.split_units, b.rows) == (0, weight.split_units, weight.rows)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weight, a, b = (rows[f"{name}.{leaf}weight"] for leaf in ("", "lora_A.", "lora_B."))
        assert (a.split_dim, a.split_units, a.rows) == (1, weight.split_units, weight.rows)
        assert (b.split_dim, b.split_units) == (None, 1)
    assert row_parallel_modules(config) == ["self_attn.o_proj", "mlp.down_proj"]


def test_only_adapters_are_trained() -> None:
    rows = parameter_rows(small_config(adapters=Adapters(rank=2, alpha=4.0, targets=("v_proj",))))
    trained = [row.name for row in rows if row.trained]
    assert trained == [f"layers.*.self_attn.v_proj.lora_{letter}.weight" for letter in "AB"]
    assert all(row.trained for row in parameter_rows(small_config()))


def test_a_starts_uniform_as_pefts_and_b_at_zero() -> None:
    config = small_config(
        intermediate_size=400, adapters=Adapters(rank=64, alpha=4.0, targets=("down_proj",))
    )
    name = "layers.1.mlp.down_proj.lora_{}.weight"
    a = draw_elements(name.format("A"), 0, 64 * 400, config, 1)
    peft = torch.nn.Linear(400, 64, bias=False)
    torch.nn.init.kaiming_uniform_(peft.weight, a=math.sqrt(5))
    assert a.abs().max() <= 1 / math.sqrt(400)
    assert a.abs().max() == pytest.approx(peft.weight.abs().max().item(), rel=1e-2)
    assert a.std().item() == pytest.approx(peft.weight.std().item(), rel=2e-2)
    assert not draw_elements(name.format("B"), 0, 24 * 64, config, 1).any()
