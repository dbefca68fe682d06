"""Bytes that backward keeps: each storage once, parameters never."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hydraulis.config.kinds import CheckpointingKind
from hydraulis.data.collate import PackedMicroBatch, collate
from hydraulis.profile.memory import activation_bytes
from small_model import small_config
from stage_bytes import stage_bytes

if TYPE_CHECKING:
    from hydraulis.runtime.pipeline.stage import Stage

TOKENS, WIDTH = 6, 4
FLOAT64 = 8


class MadeUpStage:
    """What `activation_bytes` asks of a stage; the computation is the test's."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, input_tH: Tensor, _micro_batch: PackedMicroBatch, _denominator: int) -> Tensor:
        output: Tensor = self.module(input_tH)
        return output


def micro_batch(tokens: int) -> PackedMicroBatch:
    return collate([np.zeros(tokens, dtype=np.uint8)], multiple=1)


def count(module: nn.Module) -> int:
    stage: Any = MadeUpStage(module)
    input_tH = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    return activation_bytes(cast("Stage", stage), input_tH, micro_batch(TOKENS))


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        # Saves its result, which is the output.
        return x.exp()


class ProductOfHalves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        # Saves both halves of one storage; the output is one of half the size.
        return x[:, :2] * x[:, 2:]


class TwiceTheSame(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        # Both exponentials of the products save their own; the products save x, which is one. The sum is the
        # output.
        return (2.0 * x).exp() + (x * x).exp()


class LinearMap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1000, WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        # Saves its input and its weight, the weight as a view.
        return x @ self.weight[2:].T


@pytest.mark.parametrize(
    ("module", "kept_elements"),
    [
        (Exponential(), TOKENS * WIDTH),
        (ProductOfHalves(), TOKENS * WIDTH + TOKENS * WIDTH // 2),
        (TwiceTheSame(), 4 * TOKENS * WIDTH),
        (LinearMap(), TOKENS * WIDTH + TOKENS * 998),
        (nn.Sequential(Exponential(), Exponential()), 2 * TOKENS * WIDTH),
    ],
)
def test_counts_are_those_made_by_hand(module: nn.Module, kept_elements: int) -> None:
    assert count(module) == kept_elements * FLOAT64


def test_a_stage_keeps_as_much_for_every_token() -> None:
    one, two, four = (stage_bytes(tokens) for tokens in (64, 128, 256))
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert four == pytest.approx(2 * two, rel=0.01)


def test_layers_keep_alike_and_half_the_bytes_halve_them() -> None:
    one, two, three = (stage_bytes(128, num_hidden_layers=layers) for layers in (1, 2, 3))
    assert three - two == two - one > 0
    assert stage_bytes(128, torch.float32) == pytest.approx(stage_bytes(128) / 2, rel=0.05)


def layer_bytes(checkpointing: CheckpointingKind) -> float:
    """Give what one layer keeps for one token."""
    one, two = (stage_bytes(128, checkpointing=checkpointing, num_hidden_layers=layers) for layers in (1, 2))
    return (two - one) / 128


def test_each_kind_of_checkpointing_keeps_less_and_it_is_counted() -> None:
    config = small_config()
    none, selective, full = (layer_bytes(kind) for kind in ("none", "selective", "full"))
    assert full == config.hidden_size * FLOAT64
    # Input, heads before and after rotation, attention's output (log-sum-exp beside it), maps to the stream,
    # gate and up.
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    elements = 2 * config.hidden_size + 3 * queries + 3 * keys + 2 * config.intermediate_size
    elements += config.num_attention_heads
    assert selective == elements * FLOAT64
    assert none > selective + config.intermediate_size * FLOAT64


def test_a_layer_keeps_at_least_what_its_mathematics_needs() -> None:
    """Counted on paper, per token: inputs of norms and maps, q, k, v, attention's output, SwiGLU's parts."""
    config = small_config()
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    minimum = 4 * config.hidden_size + (heads + config.num_attention_heads) * config.head_dim
    minimum += 3 * config.intermediate_size
    per_layer = (stage_bytes(128, num_hidden_layers=2) - stage_bytes(128, num_hidden_layers=1)) / 128
    assert minimum * FLOAT64 <= per_layer <= 3 * minimum * FLOAT64


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_how_many_sequences_tokens_are_in_makes_no_difference(
    checkpointing: CheckpointingKind, dtype: torch.dtype
) -> None:
    """Why a profile has bytes for each token and none for each sequence."""
    split = [[128], [64] * 2, [100, 20, 8], [1] * 128]
    assert len({stage_bytes(lengths, dtype, checkpointing) for lengths in split}) == 1
