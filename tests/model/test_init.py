import pytest
import torch
from torch import Tensor

from hydraulis.model.init import draw_elements
from small_model import small_config

CONFIG = small_config(initializer_range=0.02)


def draw(name: str, *, seed: int = 1) -> Tensor:
    return draw_elements(name, 0, 12_000, CONFIG, seed)


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
    assert torch.equal(draw_elements(name, 0, 40, CONFIG, 1), torch.ones(40))


def test_biases_are_zeros() -> None:
    assert torch.equal(draw_elements("layers.0.self_attn.q_proj.bias", 0, 40, CONFIG, 1), torch.zeros(40))
