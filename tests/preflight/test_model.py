"""The check of the model."""

import math
from pathlib import Path

from helpers import lacks
from hydraulis.model.parameters import named_rows
from preflight.checked_run import findings, read


def test_sequences_longer_than_the_models_positions_are_a_warning(made: Path) -> None:
    assert "max_position_embeddings" not in findings(read(made))["model"].text
    found = findings(read(made, "data.max_tokens=65", "planner.strategies=2x<tp2>"))["model"]
    assert found.status == "warning"
    assert lacks(found.text, "data.max_tokens = 65", "max_position_embeddings = 64", f"{made}/base/") == []


def test_no_decay_patterns_without_a_parameter_are_a_warning(made: Path) -> None:
    assert findings(read(made, "optimizer.no_decay=model.norm.weight"))["model"].status == "ok"
    found = findings(read(made, "optimizer.no_decay=norm.weight"))["model"]
    assert found.status == "warning"
    assert lacks(found.text, "optimizer.no_decay", "'norm.weight'") == []


def test_adapters_need_a_base_model_and_are_counted_apart(made: Path) -> None:
    adapters = ("lora.rank=2", "lora.alpha=4", "lora.targets=['q_proj']", "planner.profile=", "train.steps=3")
    # Two layers with 32 inputs and 32 outputs.
    found = findings(read(made, *adapters))["model"]
    assert found.status == "ok"
    config = read(made)
    base = sum(math.prod(row.shape) for row in named_rows(config.model).values())
    trained = 2 * 2 * (32 + 32)
    assert lacks(found.text, f"{base + trained:,}", f"{base:,}", "frozen", "train.seed = 0") == []
    found = findings(read(made, *adapters, "checkpoint.weights="))["model"]
    assert (found.status, found.code) == ("refused", "config_value")
    assert "lora.rank = 2" in found.text
