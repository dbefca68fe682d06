"""Patterns of parameters without weight decay, and whether they match."""

import dataclasses

import pytest

from helpers import lacks
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.preflight.notes import no_decay_note
from runtime.tiny import run_config

DEFAULT = OptimizerConfig().no_decay


@pytest.mark.parametrize(
    ("patterns", "idle"),
    [
        ((), ()),
        # The model has no biases.
        (DEFAULT, ()),
        (("model.norm.weight", "model.layers.*.mlp.*"), ()),
        (("norm.weight",), ("norm.weight",)),
        ((*DEFAULT, "*.bais", "model.norm.weight", "layers.0.*"), ("*.bais", "layers.0.*")),
    ],
)
def test_patterns_without_a_parameter_are_named(patterns: tuple[str, ...], idle: tuple[str, ...]) -> None:
    config = run_config(1, ["1x<1>"])
    optimizer = dataclasses.replace(config.optimizer, no_decay=patterns)
    said = no_decay_note(dataclasses.replace(config, optimizer=optimizer))
    assert bool(said) == bool(idle)
    if len(idle) == 1:
        assert lacks(said, "optimizer.no_decay", "'norm.weight'") == []
    if len(idle) == 2:
        assert lacks(said, "optimizer.no_decay", "'*.bais', 'layers.0.*'") == []
