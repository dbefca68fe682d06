"""The check of the model."""

from pathlib import Path

from preflight.checked_run import findings, read


def test_sequences_longer_than_the_models_positions_are_a_warning(made: Path) -> None:
    assert "max_position_embeddings" not in findings(read(made))["model"].text
    found = findings(read(made, "data.max_tokens=65", "planner.strategies=2x<tp2>"))["model"]
    assert found.status == "warning"
    assert f"; data.max_tokens = 65 is above max_position_embeddings = 64 of {made}/base/" in found.text


def test_no_decay_patterns_without_a_parameter_are_a_warning(made: Path) -> None:
    assert findings(read(made, "optimizer.no_decay=model.norm.weight"))["model"].status == "ok"
    found = findings(read(made, "optimizer.no_decay=norm.weight"))["model"]
    assert found.status == "warning"
    assert "; optimizer.no_decay: 'norm.weight' matches no parameter of the model" in found.text
