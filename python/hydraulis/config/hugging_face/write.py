"""Writes a model's shape as the `config.json` of a Hugging Face model, the inverse of read.py."""

from typing import Any

from hydraulis.config.hugging_face.read import from_hugging_face
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_toml

_SAME_NAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "initializer_range",
    "tie_word_embeddings",
)
_FAMILY_FIELDS = ("attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "sliding_window")
"""Fields in which the families differ."""

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SCALING = {
    "linear": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
}
"""By `rope_type`: the fields of the type."""


def to_hugging_face(model: ModelConfig, max_positions: int) -> dict[str, Any]:
    """Describe a model so that transformers computes the same.

    The family is the first of Llama, Mistral, Qwen2 and Qwen3 with the model's biases, norms and window.
    Rotary scaling has the field names from before transformers 5, which later releases read too.

    Args:
        model: Shape of the model.
        max_positions: Longest trained sequence in tokens; the context of a rotary scaling replaces it if
            larger.

    Raises:
        InvalidInputError: No family has these biases, norms and window (code `model_unsupported`).
    """
    family = _family(model)
    config = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "hidden_act": "silu",
        **{name: getattr(model, name) for name in _SAME_NAME},
        "max_position_embeddings": max(max_positions, _scaled_positions(model)),
        "rope_theta": model.rope_theta,
        "rope_scaling": _rope_scaling(model),
        "use_cache": True,
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = model.attention_bias
    if family == "llama":
        config["mlp_bias"] = model.mlp_bias
    else:
        config["sliding_window"] = model.sliding_window
    if family in ("qwen2", "qwen3"):
        config |= {"use_sliding_window": model.sliding_window is not None, "max_window_layers": 0}
    # Reading the fields back proves that they describe the model.
    if from_hugging_face(config) != model:
        _refuse(model)
    return config


def _family(model: ModelConfig) -> str:
    if model.qk_norm:
        return "qwen3"
    if model.attention_bias and not model.attention_output_bias:
        return "qwen2"
    return "llama" if model.sliding_window is None else "mistral"


def _rope_scaling(model: ModelConfig) -> dict[str, Any] | None:
    scaling = model.rope_scaling
    if scaling is None:
        return None
    fields = {name: getattr(scaling, name) for name in _SCALING[scaling.rope_type]}
    known = {name: value for name, value in fields.items() if value is not None}
    return {"rope_type": scaling.rope_type, **known}


def _scaled_positions(model: ModelConfig) -> int:
    scaling = model.rope_scaling
    if scaling is None or scaling.original_max_position_embeddings is None:
        return 0
    return round(scaling.factor * scaling.original_max_position_embeddings)


def _refuse(model: ModelConfig) -> None:
    *most, last = (f"{name} = {as_toml(getattr(model, name))}" for name in _FAMILY_FIELDS)
    message = (
        f"no family of transformers has {', '.join(most)} and {last} together: use the shards of the "
        "checkpoint itself"
    )
    raise InvalidInputError(message, code="model_unsupported")
