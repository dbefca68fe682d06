"""Sharded gradients and parameters: any strategy without stages equals one process."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from hydraulis import Strategy
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.lora import TARGETS, Adapters
from hydraulis.config.model import ModelConfig
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.places import buffer_places
from ranks import run_ranks
from runtime.adapters_workers import train_adapters
from runtime.measure_workers import memory_of_plans
from runtime.one_process import OPTIMIZER, assert_equal, checkpointed, model_config, one_process
from runtime.sharding_workers import persistent_by_kind, trained_by_kind
from runtime.test_adapters import by_peft
from runtime.worker_workers import Batch, Step, train
from small_model import small_config

STRATEGIES = (
    "8x<1>",
    "1x<tp4>+1x<tp2>+2x<1>",
    "1x<tp2,cp2>+1x<cp2>+2x<1>",
    "2x<tp4>",
    "1x<cp4>+4x<1>",
    "1x<tp4>+1x<1>",
    "4x<tp2>",
    "1x<tp4,cp2>",
)
MEMORY_STRATEGIES = ("3x<1>", "1x<tp2>", "1x<cp2>")
SIZES = (3, 26, 30, 20, 36, 28, 9, 14)
# Layer plans of four layers, which the replicas of a strategy have in turn.
LAYER_PLANS = (
    "offload",
    "full-offload",
    "selective,full:1/4",
    "offload:2/4",
    "full,offload:3/4",
    "selective,offload:1/4",
    "full",
)


def steps_of(
    config: ModelConfig, count: int = len(SIZES), kinds: Sequence[str] = ("none",)
) -> list[tuple[str, Batch]]:
    """Return batches of which many replicas need several micro-batches; the first leaves replicas idle."""
    rng = np.random.default_rng(5)
    lengths = [np.clip(rng.lognormal(2.4, 1.0, size), 2, 64).astype(int) for size in SIZES[:count]]
    drawn = [[rng.integers(config.vocab_size, size=n).astype(np.uint8) for n in one] for one in lengths]
    strategies = [checkpointed(strategy, kinds) for strategy in STRATEGIES[:count]]
    return list(zip(strategies, drawn, strict=True))


def trained(
    config: ModelConfig,
    steps: Sequence[tuple[str, Batch]],
    node: int,
    frozen: tuple[str, ...] = (),
    sharding: ShardingKind = "gradients",
) -> list[Step]:
    settings = ("ulysses", (), None, "per_micro_batch", sharding, frozen)
    by_rank = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, *settings, ranks_per_node=node)
    result: list[Step] = by_rank[0]
    return result


# Embeddings tied or not, ranks of a node, and layers: an even number of them puts embedding and head into
# different parts of the buffer.
@pytest.mark.parametrize(
    ("sharding", "tied", "node", "layers", "kinds"),
    [
        ("gradients", False, 8, 4, ("none",)),
        ("gradients", True, 4, 3, ("none",)),
        ("gradients", True, 2, 4, ("none",)),
        ("gradients", True, 4, 4, LAYER_PLANS),
        ("parameters", False, 8, 4, ("none",)),
        ("parameters", True, 2, 3, ("none",)),
        ("parameters", False, 4, 4, LAYER_PLANS),
    ],
)
@pytest.mark.devices
def test_every_strategy_equals_one_process_in_float64(
    *, sharding: ShardingKind, tied: bool, node: int, layers: int, kinds: Sequence[str]
) -> None:
    config = model_config(tie_word_embeddings=tied, num_hidden_layers=layers)
    steps = steps_of(config, kinds=kinds)
    result = trained(config, steps, node, sharding=sharding)
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    counts = [step.micro_batches for step in result]
    assert max(map(max, counts)) >= 3
    # Replicas with unequal numbers of micro-batches, and ranks without work.
    assert sum(len(set(one)) > 1 for one in counts) >= 3
    assert any(step.idle_ranks for step in result)


@pytest.mark.parametrize("sharding", ["none", "gradients", "parameters"])
def test_the_only_rank_of_a_run_equals_one_process(sharding: ShardingKind) -> None:
    """Its contributions replace the sums of the step before; of several rounds they add up."""
    config = model_config()
    steps = [("1x<1>", batch) for _, batch in steps_of(config, 3)]
    settings = ("ulysses", (), None, "per_micro_batch", sharding, ())
    (result,) = run_ranks(1, train, config, OPTIMIZER, torch.float64, steps, *settings)
    assert max(max(step.micro_batches) for step in result) >= 3
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)


# Frozen are layers in the middle; a part of each layer; the first layer groups, where no backward comes; all
# but the head.
@pytest.mark.parametrize(
    ("sharding", "frozen", "tied"),
    [
        ("gradients", ("model.layers.[12].*", "lm_head.weight"), False),
        ("gradients", ("*mlp*", "*norm*"), False),
        ("parameters", ("model.layers.[12].*", "lm_head.weight"), False),
        ("parameters", ("*mlp*", "*norm*"), True),
        ("parameters", ("model.embed_tokens.*", "model.layers.[01].*"), False),
        ("parameters", ("model.embed_tokens.*", "model.layers.*"), False),
    ],
)
def test_the_other_parameters_are_trained_as_in_one_process(
    *, sharding: ShardingKind, frozen: tuple[str, ...], tied: bool
) -> None:
    config = model_config(tie_word_embeddings=tied)
    steps = steps_of(config, 4)
    parameters = ModelParameters.from_config(config, frozen)
    names = [name for name in parameters.names if parameters.is_trained(name)]
    expected = one_process(config, torch.float64, steps, names)
    assert_equal(trained(config, steps, 4, frozen, sharding), expected, 1e-10, 1e-10)


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
@pytest.mark.parametrize(("tied", "kinds"), [(False, ("none",)), (True, LAYER_PLANS)])
def test_adapters_are_trained_as_in_one_process(
    *, tied: bool, kinds: Sequence[str], sharding: ShardingKind
) -> None:
    config = model_config(adapters=Adapters(rank=3, alpha=5.0, targets=TARGETS), tie_word_embeddings=tied)
    steps = steps_of(config, 4, kinds)
    result, elements = run_ranks(8, train_adapters, config, OPTIMIZER, steps, "ring", sharding)[0]
    assert_equal(result, by_peft(config, steps), 1e-10, 1e-10)
    # Two of four layers.
    assert set(elements) == {ModelParameters.from_config(config).elements.trained // 2}


def test_losses_are_those_without_sharding_and_the_same_in_every_run() -> None:
    config = model_config(num_hidden_layers=3)
    # The norm of all gradients clips them.
    clipping = replace(OPTIMIZER, clip_norm=0.1)
    whole, *sharded = run_ranks(8, trained_by_kind, config, clipping, steps_of(config, 4))[0]
    gradients, gradients_again, parameters, parameters_again = sharded
    for number, steps in enumerate(sharded):
        for one, other in zip(whole, steps, strict=True):
            assert other.loss == pytest.approx(one.loss, rel=1e-12)
            for name, value in one.parameters.items():
                torch.testing.assert_close(other.parameters[name], value, rtol=1e-9, atol=1e-12)
            # One micro-batch on each replica: the same gradients travel. Otherwise they travel more often.
            is_single = set(one.micro_batches) <= {0, 1}
            assert (sum(other.sent_bytes) == sum(one.sent_bytes)) == (is_single and number < 2)
            assert sum(other.sent_bytes) >= sum(one.sent_bytes)
    for steps, again in ((gradients, gradients_again), (parameters, parameters_again)):
        for one, other in zip(steps, again, strict=True):
            assert all(torch.equal(other.parameters[name], value) for name, value in one.parameters.items())
    assert any(set(one.micro_batches) <= {0, 1} for one in whole)


@pytest.mark.parametrize(
    ("sharding", "adapters"),
    [("gradients", None), ("parameters", None), ("parameters", Adapters(rank=3, alpha=5.0, targets=TARGETS))],
)
def test_predicted_memory_is_near_the_memory_of_every_rank(
    sharding: ShardingKind, adapters: Adapters | None
) -> None:
    measured = partial(memory_of_plans, adapters=adapters)
    found = run_ranks(3, measured, MEMORY_STRATEGIES, 3, sharding)[0]
    assert set(found) == set(MEMORY_STRATEGIES)
    for strategy, pairs in found.items():
        assert pairs
        for planned, held in pairs:
            assert planned == pytest.approx(held, rel=0.05), strategy


def test_persistent_memory_falls_by_all_but_two_layer_groups() -> None:
    layers = 8
    parameters = ModelParameters.from_config(small_config(vocab_size=256, num_hidden_layers=layers))
    # The buffers have the size of those of <1>: a layer's parameters take a third of a vocabulary's.
    schemes = Strategy("1x<1>").schemes
    trained = parameters.elements.trained
    places = buffer_places(parameters, schemes, "parameters", elements=trained, trained=trained)
    held, gradients = (one.elements for one in places)
    assert max(gradients, held) < trained / 2
    for none, of_gradients, of_parameters in run_ranks(3, persistent_by_kind, MEMORY_STRATEGIES, layers):
        assert none - of_gradients == 4 * (trained - gradients)
        # Outgoing parameters no longer wait in the gradient buffer, and a bucket is permuted apart.
        apart = 4 * (trained - held) - (of_gradients - of_parameters)
        assert 0 < apart < 4 * 4 * held
