"""Bytes saved for backward: each storage once, parameters never."""

import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hydraulis.config.kinds import CheckpointingKind
from hydraulis.config.lora import TARGETS, Adapters
from hydraulis.data.collate import PackedMicroBatch, collate
from hydraulis.profile.activations import activation_bytes
from small_model import small_config
from stage_bytes import stage_bytes

if TYPE_CHECKING:
    from hydraulis.runtime.pipeline.stage import Stage

TOKENS, WIDTH = 6, 4
FLOAT64 = 8


class MadeUpStage:
    """The part of a stage that `activation_bytes` uses, with the test's computation."""

    padding_multiple = 1
    copies = None

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
        # Each exponential saves its result; both products save x once. The sum is the output.
        return (2.0 * x).exp() + (x * x).exp()


class LinearMap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1000, WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        # Saves its input and its weight, the weight as a view.
        return x @ self.weight[2:].T


@pytest.mark.parametrize(
    ("module", "saved_elements"),
    [
        (Exponential(), TOKENS * WIDTH),
        (ProductOfHalves(), TOKENS * WIDTH + TOKENS * WIDTH // 2),
        (TwiceTheSame(), 4 * TOKENS * WIDTH),
        (LinearMap(), TOKENS * WIDTH + TOKENS * 998),
        (nn.Sequential(Exponential(), Exponential()), 2 * TOKENS * WIDTH),
    ],
)
def test_counts_equal_the_expected_elements(module: nn.Module, saved_elements: int) -> None:
    assert count(module) == saved_elements * FLOAT64


def test_saved_bytes_are_linear_in_the_tokens() -> None:
    one, two, four = (stage_bytes(tokens) for tokens in (64, 128, 256))
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert four == pytest.approx(2 * two, rel=0.01)


def test_layers_save_equal_bytes_in_proportion_to_the_dtype() -> None:
    one, two, three = (stage_bytes(128, num_hidden_layers=layers) for layers in (1, 2, 3))
    assert three - two == two - one > 0
    assert stage_bytes(128, torch.float32) == pytest.approx(stage_bytes(128) / 2, rel=0.05)


def layer_bytes(checkpointing: CheckpointingKind) -> float:
    """Return the saved bytes of one layer per token."""
    one, two = (stage_bytes(128, checkpointing=checkpointing, num_hidden_layers=layers) for layers in (1, 2))
    return (two - one) / 128


def test_each_kind_of_checkpointing_saves_the_expected_bytes() -> None:
    config = small_config()
    none, selective, full = (layer_bytes(kind) for kind in ("none", "selective", "full"))
    assert full == config.hidden_size * FLOAT64
    # Input, heads before and after rotation, attention's output and log-sum-exp, projections to the stream,
    # gate and up.
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    elements = 2 * config.hidden_size + 3 * queries + 3 * keys + 2 * config.intermediate_size
    elements += config.num_attention_heads
    assert selective == elements * FLOAT64
    # Without checkpointing the norms save their inputs and results too, and the heads are saved once.
    norms = 4 * config.hidden_size + 2
    assert none == selective + (norms - queries - keys) * FLOAT64


def test_selective_saves_the_output_of_an_adapted_map_once() -> None:
    rank = 5
    adapters = Adapters(rank=rank, alpha=5.0, targets=TARGETS)
    one, two = (
        stage_bytes(128, checkpointing="selective", num_hidden_layers=layers, adapters=adapters)
        for layers in (1, 2)
    )
    # The inner product of each adapter, besides.
    assert (two - one) / 128 == layer_bytes("selective") + len(TARGETS) * rank * FLOAT64


def test_a_layer_saves_at_least_the_inputs_of_its_gradients() -> None:
    """The minimum per token: inputs of norms and projections, q, k, v, attention's output, gate, up."""
    config = small_config()
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    minimum = 4 * config.hidden_size + (heads + config.num_attention_heads) * config.head_dim
    minimum += 2 * config.intermediate_size
    per_layer = (stage_bytes(128, num_hidden_layers=2) - stage_bytes(128, num_hidden_layers=1)) / 128
    assert minimum * FLOAT64 <= per_layer <= 3 * minimum * FLOAT64


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_number_of_sequences_does_not_change_the_bytes(
    checkpointing: CheckpointingKind, dtype: torch.dtype
) -> None:
    """The reason why a profile has bytes per token and none per sequence."""
    split = [[128], [64] * 2, [100, 20, 8], [1] * 128]
    assert len({stage_bytes(lengths, dtype, checkpointing) for lengths in split}) == 1


class OfItsOwn(torch.autograd.Function):
    """Saves its result, as attention does, and has something that the test follows."""

    followed: "list[weakref.ref[OfItsOwn.Followed]]" = []  # noqa: RUF012  the test's own

    class Followed:
        """Lives as long as the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.followed = OfItsOwn.Followed()
        OfItsOwn.followed.append(weakref.ref(ctx.followed))
        result = 2.0 * x
        ctx.save_for_backward(result)
        return result


of_its_own: Callable[[Tensor], Tensor] = OfItsOwn.apply


class TwiceByItself(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return of_its_own(x).sin()


def test_counting_leaves_frozen_objects_frozen() -> None:
    """A forked rank shares the pages of frozen objects with other ranks: collections must not visit them."""
    gc.freeze()
    before = gc.get_freeze_count()
    count(Exponential())
    assert gc.get_freeze_count() > before - 1_000


def test_a_counted_graph_is_freed() -> None:
    # The result of the function, which both save; and the output.
    assert count(TwiceByItself()) == 2 * TOKENS * WIDTH * FLOAT64
    gc.collect()
    assert [one() for one in OfItsOwn.followed] == [None]
