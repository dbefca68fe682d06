import pytest
import torch
from torch import Tensor

from hydraulis.model.init import initial_value
from small_model import small_config

CONFIG = small_config(initializer_range=0.02)


def draw(name: str, *, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return initial_value(name, (300, 40), CONFIG, seed, dtype)


def test_initial_values_depend_on_seed_and_name_only() -> None:
    before = draw("layers.0.mlp.up_proj.weight")
    torch.manual_seed(99)
    draw("layers.1.mlp.up_proj.weight")
    assert torch.equal(draw("layers.0.mlp.up_proj.weight"), before)
    assert not torch.equal(draw("layers.1.mlp.up_proj.weight"), before)
    assert not torch.equal(draw("layers.0.mlp.up_proj.weight", seed=2), before)


def test_initialization_leaves_the_global_random_state_unchanged() -> None:
    state = torch.get_rng_state()
    draw("lm_head.weight")
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_values_are_normal_with_the_given_deviation() -> None:
    value = draw("embed_tokens.weight")
    # 12,000 draws: the mean is within 4 standard errors, the deviation too.
    assert abs(value.mean().item()) < 4 * 0.02 / 12000**0.5
    assert value.std().item() == pytest.approx(0.02, rel=4 / 24000**0.5)


@pytest.mark.parametrize(
    "name", ["norm.weight", "layers.0.input_layernorm.weight", "layers.11.post_attention_layernorm.weight"]
)
def test_norms_are_ones(name: str) -> None:
    assert torch.equal(initial_value(name, (40,), CONFIG, 1, torch.float32), torch.ones(40))


def test_every_dtype_rounds_the_same_values() -> None:
    value = draw("lm_head.weight")
    for dtype in (torch.bfloat16, torch.float64):
        assert torch.equal(draw("lm_head.weight", dtype=dtype), value.to(dtype))


def test_biases_are_zeros() -> None:
    name = "layers.0.self_attn.q_proj.bias"
    assert torch.equal(initial_value(name, (40,), CONFIG, 1, torch.float32), torch.zeros(40))
