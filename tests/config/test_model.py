import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from helpers import at_least, refused
from hydraulis.config.model import ModelConfig, RopeScaling

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
FIELDS = [field.name for field in dataclasses.fields(ModelConfig)]
NUMBERS = [field.name for field in dataclasses.fields(ModelConfig) if field.type in (int, float)]


def test_defaults_are_those_of_hugging_face_llama() -> None:
    config = ModelConfig(**SHAPE)
    assert (config.rope_theta, config.rms_norm_eps, config.initializer_range) == (10000.0, 1e-5, 0.02)
    assert config.tie_word_embeddings is False


@pytest.mark.parametrize("given", [{}, {"head_dim": 0}, {"head_dim": None}])
def test_head_dim_follows_from_hidden_size(given: dict[str, Any]) -> None:
    assert ModelConfig(**SHAPE, **given).head_dim == 8


def test_head_dim_may_be_given_and_need_not_fit_hidden_size() -> None:
    assert ModelConfig(**SHAPE | {"hidden_size": 60, "head_dim": 32}).head_dim == 32


def test_a_real_may_be_written_as_an_integer() -> None:
    theta = ModelConfig(**SHAPE, rope_theta=500000).rope_theta
    assert theta == 500000.0
    assert type(theta) is float


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), "8"])
def test_every_field_refuses_values_of_other_types(field: str, value: Any) -> None:
    with refused("model_invalid", f"{field} = {value!r}"):
        ModelConfig(**SHAPE | {field: value})


@pytest.mark.parametrize("field", at_least(9, (name for name in NUMBERS if name != "head_dim")))
@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (True, "true"), (None, "null")])
def test_every_number_refuses_zero_booleans_and_none(field: str, value: Any, shown: str) -> None:
    with refused("model_invalid", f"{field} = {shown}"):
        ModelConfig(**SHAPE | {field: value})


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_size": 60}, ["hidden_size = 60 ", "num_attention_heads = 8"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads = 3 ", "num_attention_heads = 8"]),
        ({"num_key_value_heads": 16}, ["num_key_value_heads = 16 ", "num_attention_heads = 8"]),
        ({"head_dim": 7}, ["head_dim = 7 ", "even"]),
        ({"hidden_size": 24}, ["head_dim = 3 ", "even"]),
    ],
)
def test_inconsistent_fields_are_refused(changes: dict[str, int], parts: list[str]) -> None:
    with refused("model_invalid", *parts):
        ModelConfig(**SHAPE | changes)


def test_the_class_is_frozen_and_keyword_only() -> None:
    config = ModelConfig(**SHAPE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        ModelConfig(*SHAPE.values())  # type: ignore[call-arg]


def test_importing_the_configuration_leaves_torch_unloaded() -> None:
    code = "import sys, hydraulis.config.model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.5}, "rope_scaling.factor = 0.5"),
        ({"low_freq_factor": 0.0}, "rope_scaling.low_freq_factor = 0.0"),
        ({"high_freq_factor": 1.0}, "rope_scaling.high_freq_factor = 1.0"),
        ({"beta_slow": -1.0}, "rope_scaling.beta_slow = -1.0"),
        ({"beta_fast": 0.5}, "rope_scaling.beta_fast = 0.5"),
        ({"attention_factor": 0.0}, "rope_scaling.attention_factor = 0.0"),
        ({"original_max_position_embeddings": 0}, "rope_scaling.original_max_position_embeddings = 0"),
        ({"original_max_position_embeddings": None}, "rope_type = 'yarn'"),
    ],
)
def test_fields_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    RopeScaling(**YARN)
    with refused("config_value", message):
        RopeScaling(**YARN | changes)


def test_linear_scaling_needs_no_context() -> None:
    assert RopeScaling(rope_type="linear", factor=3.0).original_max_position_embeddings is None
