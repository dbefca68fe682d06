"""Layer plans: gradients of drawn ones equal one process, and saved bytes are as derived from two kinds."""

import numpy as np
import pytest
import torch

from hydraulis import Scheme, Strategy
from hydraulis.config.kinds import ContextKind
from hydraulis.config.model import ModelConfig
from ranks import run_ranks
from runtime.layer_plan_workers import PIPELINES, SavedByKind, saved_by_layer_plans
from runtime.one_process import (
    CONTEXT_STRATEGIES,
    OPTIMIZER,
    STRATEGIES,
    assert_equal,
    batches,
    checkpointed,
    model_config,
    one_process,
)
from runtime.worker_workers import Batch, Step, train_all

LAYERS = 5
RUNS: dict[str, tuple[ModelConfig, tuple[str, ...], ContextKind]] = {
    "tied": (
        model_config(num_hidden_layers=LAYERS, tie_word_embeddings=True, qk_norm=True),
        (*STRATEGIES[1:10:2], *CONTEXT_STRATEGIES[1:8]),
        "ulysses",
    ),
    "with biases": (
        model_config(num_hidden_layers=LAYERS, attention_bias=True),
        (*STRATEGIES[2:10:2], *CONTEXT_STRATEGIES[:8:2]),
        "ring",
    ),
}


def steps_of(run: str) -> list[tuple[str, Batch]]:
    """Draw a layer plan of two kinds for each replica of each strategy."""
    config, strategies, _ = RUNS[run]
    first = ("", "selective,", "full,")
    kinds = ["selective", "full", "selective,full", *(f"{usual}offload" for usual in first)]
    kinds += [f"{usual}full-offload" for usual in first]
    plans = [f"{kind}:{number}/{LAYERS}" for kind in kinds for number in range(1, LAYERS)]
    rng = np.random.default_rng(list(RUNS).index(run))
    drawn = [checkpointed(strategy, rng.permutation(plans).tolist()) for strategy in strategies]
    return list(zip(drawn, batches(len(drawn), config.vocab_size), strict=True))


@pytest.fixture(scope="module")
def results() -> dict[str, list[Step]]:
    """Train every run, in one process group."""
    runs = [
        (config, OPTIMIZER, torch.float64, steps_of(run), context)
        for run, (config, _, context) in RUNS.items()
    ]
    return dict(zip(RUNS, run_ranks(8, train_all, runs)[0], strict=True))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.devices
def test_drawn_layer_plans_equal_one_process_in_float64(results: dict[str, list[Step]], run: str) -> None:
    expected = one_process(RUNS[run][0], torch.float64, steps_of(run))
    assert_equal(results[run], expected, 1e-10, 1e-10)


def test_at_least_forty_layer_plans_are_drawn() -> None:
    schemes = {scheme for run in RUNS for text, _ in steps_of(run) for scheme in Strategy(text).schemes}
    assert len(schemes) >= 40
    assert sum("offload" in scheme.checkpointing for scheme in schemes) >= 15
    assert all(scheme.planned_layers == LAYERS for scheme in schemes)
    assert {scheme.pp > 1 for scheme in schemes} == {scheme.cp > 1 for scheme in schemes} == {True, False}


@pytest.fixture(scope="module")
def saved() -> list[list[SavedByKind]]:
    result: list[list[SavedByKind]] = run_ranks(4, saved_by_layer_plans)
    return result


def test_saved_bytes_are_those_that_a_profile_derives_from_two_kinds(saved: list[list[SavedByKind]]) -> None:
    compared = 0
    for of_rank in saved:
        for one in of_rank:
            if "offload" in one.scheme:
                # A later stage's received input counts in each of its first two layers.
                assert 0.999 * one.counted <= one.derived <= 1.06 * one.counted, one
            else:
                assert one.counted == pytest.approx(one.derived, rel=0.01), one
            assert one.counted_on_host == pytest.approx(one.derived_on_host, rel=0.05), one
            compared += 1
    # Three layer plans between each two kinds, on each rank that some replica has; and up to three between
    # each kind and offload, where it takes less memory.
    places = sum(4 - 4 % Scheme(text).ranks for text in PIPELINES)
    assert 6 * places + 40 <= compared <= 15 * places
