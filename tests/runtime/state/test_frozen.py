"""Frozen parameters: the others train as in one process; frozen ones have no state and rarely move."""

from typing import Any

import numpy as np
import pytest
import torch

from devices import one_rank
from helpers import refused
from hydraulis import Scheme
from hydraulis._core import Position
from hydraulis.profile.bench import SchemeBench
from hydraulis.profile.memory import model_memory
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
from hydraulis.runtime.step import evaluate
from hydraulis.runtime.worker import Worker
from ranks import run_ranks
from runtime.one_process import OPTIMIZER, assert_equal, batches, checkpointed, model_config, one_process
from runtime.state.frozen_workers import Frozen, time_a_frozen_stage, train_frozen
from runtime.tiny import plan_for, train_config
from runtime.worker_workers import SEED
from small_model import small_config

# In the third a first stage has nothing to train.
STRATEGIES = (
    "2x<tp2>",
    "2x<tp2>",
    "1x<pp4>",
    "1x<tp2,pp2>",
    "1x<cp2>+2x<1>",
    "2x<tp2>",
)
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], Any]] = {
    "what the first stage has, tied": (
        ("model.embed_tokens.*", "model.layers.[01].*"),
        {"tie_word_embeddings": True},
        "full",
    ),
    "all but attention": (
        ("*mlp*", "*norm*", "lm_head.weight"),
        {"attention_bias": True},
        "selective,full:1/4",
    ),
}


def trained_names(parameters: ModelParameters) -> list[str]:
    return [name for name in parameters.names if parameters.is_trained(name)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.devices
def test_trained_parameters_equal_those_of_one_process(case: str) -> None:
    frozen, changes, checkpointing = CASES[case]
    config = model_config(**changes)
    strategies = [checkpointed(strategy, [checkpointing]) for strategy in STRATEGIES]
    steps = list(zip(strategies, batches(len(strategies), config.vocab_size), strict=True))
    result: Frozen = run_ranks(4, train_frozen, config, OPTIMIZER, frozen, steps)[0]
    parameters = ModelParameters.from_config(config, frozen)
    trained = trained_names(parameters)
    assert_equal(result.steps, one_process(config, torch.float64, steps, trained), 1e-10, 1e-10)
    assert result.before.keys() == result.after.keys() == set(parameters.names) - set(trained)
    for name, value in result.before.items():
        assert torch.equal(result.after[name], value), name
    # Nothing moves where the ranks stay where they are.
    assert result.sent == [1, 1, 2, 3, 4, 5]
    assert result.timed == [True] * 5
    num_trained, num_frozen = parameters.elements
    assert result.optimizer_bytes == 8 * (4 * num_trained + num_frozen)
    assert result.elements[0] == pytest.approx(num_trained / 4, abs=6)
    assert result.elements[1] == 2 * result.elements[0]


@pytest.mark.devices
def test_frozen_parameters_are_placed_correctly_for_every_order() -> None:
    config = model_config()
    strategies = ("2x<tp2>", "1x<tp2>+2x<1>", "4x<1>", "1x<tp4>")
    steps = list(zip(strategies, batches(len(strategies), config.vocab_size), strict=True))
    frozen = ("*mlp*", "*norm*")
    result: Frozen = run_ranks(4, train_frozen, config, OPTIMIZER, frozen, steps)[0]
    trained = trained_names(ModelParameters.from_config(config, frozen))
    assert_equal(result.steps, one_process(config, torch.float64, steps, trained), 1e-10, 1e-10)


# A bucket without gradients is ready while parameters behind it still arrive, in another order than they lie.
@pytest.mark.parametrize("frozen", [("*norm*",), ("model.norm.weight", "model.layers.[123].*")])
@pytest.mark.devices
def test_with_a_frozen_end_gradients_are_sent_after_all_parameters_arrived(
    frozen: tuple[str, ...],
) -> None:
    config = model_config(tie_word_embeddings=True)
    # Of two sequences each replica has one micro-batch.
    batch = [np.arange(length) % config.vocab_size for length in (9, 23)]
    steps = [(strategy, batch) for strategy in ("2x<1>", "1x<tp2>", "2x<1>")]
    result: Frozen = run_ranks(2, train_frozen, config, OPTIMIZER, frozen, steps)[0]
    trained = trained_names(ModelParameters.from_config(config, frozen))
    assert_equal(result.steps, one_process(config, torch.float64, steps, trained), 1e-10, 1e-10)


def test_a_stage_without_trained_parameters_can_be_measured() -> None:
    (takes_time, kept), (last_takes_time, last_kept) = run_ranks(2, time_a_frozen_stage)
    assert takes_time
    assert last_takes_time
    # Nothing for a backward that it does not have: what it sends on is let go of.
    assert kept == 0
    assert last_kept > 0


def test_owners_keep_frozen_parameters_in_the_dtype_of_the_model() -> None:
    frozen = ("model.layers.1.*", "lm_head.weight")
    with one_rank("cpu"):
        settings = train_config(dtype=torch.bfloat16, seed=SEED, frozen=frozen)
        worker = Worker(small_config(), OPTIMIZER, settings, schemes=[Scheme("<1>")])
        shard, parameters = worker.optimizer_shard, worker.parameters
        counts = list(parameters.elements)
        assert (shard.master.dtype, shard.frozen.dtype) == (torch.float32, torch.bfloat16)
        assert [len(shard.master), len(shard.frozen)] == counts
        assert model_memory(worker, 1).optimizer_bytes == 16 * counts[0] + 2 * counts[1]
        worker.redistribution.gather_parameters(plan_for(1, "1x<1>", (9, 5)))
        stage = worker.stage(Position.all(Scheme("<1>"))[0], None)
        drawn = InitialValues(parameters, SEED, torch.float32)
        for name, value in stage.module.named_parameters():
            expected = drawn.read(name, 0, value.numel()).to(torch.bfloat16)
            assert torch.equal(parameters.canonical(value, name), expected), name


def test_the_memory_of_a_frozen_heads_gradients_serves_tokens() -> None:
    config = small_config(vocab_size=256)
    kept = {}
    for frozen in ((), ("lm_head.weight",)):
        with one_rank("cpu"):
            settings = train_config(dtype=torch.float32, frozen=frozen)
            worker = Worker(config, OPTIMIZER, settings, schemes=[Scheme("<1>")])
            kept[bool(frozen)] = SchemeBench(worker, Scheme("<1>"), None).saved_bytes(256)
    assert kept[True].per_token == kept[False].per_token
    assert kept[False].constant - kept[True].constant == 4 * config.vocab_size * config.hidden_size


def test_parameters_overwritten_by_a_measurement_are_sent_again() -> None:
    lengths = (9, 5)
    plan = plan_for(1, "1x<1>", lengths)
    losses = []
    with one_rank("cpu"):
        settings = train_config(dtype=torch.float64, seed=SEED, frozen=("model.layers.1.*",))
        worker = Worker(small_config(), OPTIMIZER, settings, schemes=[Scheme("<1>")])
        bench = SchemeBench(worker, Scheme("<1>"), None)
        for is_filled in (False, True):
            if is_filled:
                bench.initialize_parameters()
            losses.append(evaluate(worker, plan, lambda sequence: np.zeros(lengths[sequence], int)))
    assert losses[0] == losses[1]


def test_the_table_marks_trained_parameters_and_lists_them_first() -> None:
    config = small_config()
    parameters = ModelParameters.from_config(config, ["model.layers.1.*", "lm_head.weight"])
    frozen = [name for name in parameters.names if not parameters.is_trained(name)]
    assert sorted(parameters.names) == sorted(ModelParameters.from_config(config).names)
    assert parameters.trained == tuple(sorted(parameters.trained, reverse=True))
    assert {name.split(".")[0] for name in frozen} == {"layers", "lm_head"}
    assert len(frozen) == 10
    assert all(ModelParameters.from_config(config).trained)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [("model.embed.*", "no"), ("layers.0.*", "no"), ("lm_head.weight", "no"), ("*", "every")],
)
def test_a_pattern_that_freezes_no_or_every_parameter_is_refused(pattern: str, named: str) -> None:
    with refused("config_value", "train.frozen", repr(pattern), f"names {named} parameter"):
        ModelParameters.from_config(small_config(tie_word_embeddings=True), [pattern])
