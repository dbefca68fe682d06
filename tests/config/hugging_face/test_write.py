"""A config.json written for transformers is read back as the same model."""

from typing import Any

import pytest

from helpers import refused
from hydraulis.config.hugging_face.read import from_hugging_face
from hydraulis.config.hugging_face.write import to_hugging_face
from hydraulis.config.model import RopeScaling
from small_model import FAMILIES, small_config

MODELS: dict[str, dict[str, Any]] = FAMILIES | {
    "tied": {"tie_word_embeddings": True},
    "linear": {"rope_scaling": RopeScaling(rope_type="linear", factor=2.0), "rope_theta": 5e5},
    "qwen3 with biases": {"qk_norm": True, "attention_bias": True, "attention_output_bias": True},
    "window": {"sliding_window": 64},
    "qwen2 with a window": FAMILIES["qwen2"] | {"sliding_window": 64},
    "qwen3 with a window": FAMILIES["qwen3"] | {"sliding_window": 64},
    "yarn": {
        "rope_scaling": RopeScaling(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=16,
            beta_fast=2.0,
            attention_factor=0.9,
        )
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_a_written_model_is_read_back_equal(name: str) -> None:
    model = small_config(**MODELS[name])
    assert from_hugging_face(to_hugging_face(model, 64)) == model


def test_the_family_is_the_first_with_the_models_parts() -> None:
    families = {
        name: to_hugging_face(small_config(**changes), 64)["model_type"] for name, changes in FAMILIES.items()
    }
    assert to_hugging_face(small_config(sliding_window=64), 64)["model_type"] == "mistral"
    assert families == {
        "llama": "llama",
        "mistral": "llama",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "every bias": "llama",
    }


def test_the_context_is_the_longer_one_of_the_scaling() -> None:
    scaled = small_config(**FAMILIES["llama"])
    assert to_hugging_face(scaled, 64)["max_position_embeddings"] == 8 * 16
    assert to_hugging_face(scaled, 4096)["max_position_embeddings"] == 4096
    assert to_hugging_face(small_config(), 64)["max_position_embeddings"] == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_output_bias": True},
        {"qk_norm": True, "mlp_bias": True},
        {"qk_norm": True, "attention_bias": True},
        {"attention_bias": True, "mlp_bias": True},
        {"mlp_bias": True, "sliding_window": 64},
    ],
)
def test_a_model_of_no_family_is_refused(changes: dict[str, Any]) -> None:
    with refused("model_unsupported", "qk_norm = ", "sliding_window = "):
        to_hugging_face(small_config(**changes), 64)
