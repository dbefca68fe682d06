"""Reads a model's shape from the `config.json` of a Hugging Face checkpoint.

Four dense families are supported. Training a model with another architecture than its own would fail
silently, so every field is checked: a field that affects the computation must have the decoder's value, and
an unknown field is refused by name.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hydraulis.config.layered.table import from_table
from hydraulis.config.model import ModelConfig, RopeScaling
from hydraulis.errors import InvalidInputError
from hydraulis.text.documents import describe_read_error, parse_json
from hydraulis.text.values import as_toml

Fields = Mapping[str, Any]

_FIXED: dict[str, dict[str, Any]] = {
    "llama": {"qk_norm": False},
    "mistral": {"attention_bias": False, "mlp_bias": False, "qk_norm": False},
    "qwen2": {
        "attention_bias": True,
        "attention_output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
    },
    "qwen3": {"mlp_bias": False, "qk_norm": True},
}
"""By `model_type`: fields that the family's code in transformers fixes."""

_DEFAULTS: dict[str, Any] = {
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
"""Defaults of transformers 5.23 for absent fields."""

_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "use_sliding_window": False},
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "use_sliding_window": False,
    },
}

MODEL_CONFIG = "config.json"
"""Name of the file in a model's folder."""
POSITIONS = "max_position_embeddings"
_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

_MODEL = tuple(
    field.name
    for field in dataclasses.fields(ModelConfig)
    if field.name not in ("rope_theta", "rope_scaling", "adapters")
)
"""Fields that a `ModelConfig` has under the same name."""

_ONLY: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
"""Fields with the single value that the decoder supports."""

_WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "label2id",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields without effect on the decoder's computation."""

_CHECKED = frozenset(
    {
        "layer_types",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "use_sliding_window",
    }
)
"""Fields with a check of their own."""


def from_hugging_face(source: str | Path | Fields) -> ModelConfig:
    """Read the shape of a Llama, Mistral, Qwen2 or Qwen3 model.

    Args:
        source: Path of a `config.json`, or its fields.

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`) or is not JSON (`config_syntax`),
            the model has another family or a field that the decoder does not support (`model_unsupported`),
            or a field is missing or out of its range (`model_invalid`, `config_value`).
    """
    given = source if isinstance(source, Mapping) else read_fields(Path(source))
    family = given.get("model_type")
    if family is None and isinstance(given.get("planner"), Mapping):
        message = (
            "the config.json is that of a run and not of a model: export the run by 'hydraulis export', and "
            "name the folder of the export"
        )
        raise InvalidInputError(message, code="model_unsupported")
    if family not in tuple(_FIXED):
        _refuse("model_type", family, f"the families are {', '.join(_FIXED)}")
    fields = _DEFAULTS | _FAMILY_DEFAULTS.get(family, {}) | dict(given)
    _check_fixed(given, family)
    _check_known(fields)
    _check_layers(fields)
    _check_required(fields)
    if fields.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    # Unless the family fixes it, attention_bias applies to all four projections.
    fields = {"attention_output_bias": fields["attention_bias"]} | fields | _FIXED[family]
    fields["sliding_window"] = _window(fields)
    rope_theta, rope_scaling = _rope(fields)
    shape = {name: fields[name] for name in _MODEL}
    return ModelConfig(**shape, rope_theta=rope_theta, rope_scaling=rope_scaling)


def stated_fields(path: str | Path) -> frozenset[str]:
    """Return the names of the fields in a `config.json`; the other fields have defaults of the family.

    Raises:
        InvalidInputError: The file is refused as in `from_hugging_face`.
    """
    given = read_fields(Path(path))
    rope = given.get("rope_parameters")
    scaling = {"rope_scaling"} if "rope_parameters" in given else set()
    return frozenset(given) | scaling | ({"rope_theta"} & set(rope if isinstance(rope, Mapping) else ()))


def read_max_positions(path: str | Path) -> int | None:
    """Read the maximum sequence length in tokens from a `config.json`; None if absent.

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`) or is not JSON (`config_syntax`).
    """
    return max_positions(read_fields(Path(path)))


def max_positions(fields: Fields) -> int | None:
    """Return the maximum sequence length in tokens from the fields of a `config.json`; None if absent."""
    stated = fields.get(POSITIONS)
    return stated if type(stated) is int else None


def read_fields(path: Path) -> Fields:
    """Read the fields of a `config.json`.

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`) or is no JSON object
            (`config_syntax`).
    """
    try:
        fields = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = (
            f"model configuration '{path}' cannot be read "
            f"({describe_read_error(path, error)}); check the path"
        )
        raise InvalidInputError(message, code="file_unreadable") from error
    except ValueError as error:
        message = f"model configuration '{path}' must be JSON in UTF-8: {error}; correct it there"
        raise InvalidInputError(message, code="config_syntax") from error
    if not isinstance(fields, Mapping):
        message = f"model configuration '{path}' must hold a JSON object; give a checkpoint's config.json"
        raise InvalidInputError(message, code="config_syntax")
    return fields


def _check_fixed(given: Fields, family: str) -> None:
    for name, value in _FIXED[family].items():
        if given.get(name, value) != value:
            _refuse(name, given[name], f"a {family} model has {name} = {as_toml(value)}")


def _check_known(fields: Fields) -> None:
    for name, value in fields.items():
        if name in _ONLY and value != _ONLY[name]:
            _refuse(name, value, f"the decoder supports only {as_toml(_ONLY[name])}")
        if name not in _WITHOUT_EFFECT and name not in _CHECKED and name not in (*_MODEL, *_ONLY):
            _refuse(name, value, "it is unknown; remove it if it does not affect the computation")


def _check_layers(fields: Fields) -> None:
    """Refuse models with another head, such as a classifier, and layers with another attention."""
    for name in _names(fields, "architectures"):
        if not name.endswith("ForCausalLM"):
            limit = f"it must be a causal language model, ...ForCausalLM, of the families {', '.join(_FIXED)}"
            _refuse("architectures", name, limit)
    kinds = ("full_attention",) if _window(fields) is None else ("full_attention", "sliding_attention")
    for kind in _names(fields, "layer_types"):
        if kind not in kinds:
            _refuse("layer_types", kind, f"a layer may be {' or '.join(kinds)}")


def _names(fields: Fields, field: str) -> list[str]:
    """Return a list of names; an empty one if the field is absent or null."""
    names = fields.get(field)
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _refuse(field, names, "it must be a list of names")
    return names


def _window(fields: Fields) -> int | None:
    """Return the attention window in tokens; Qwen ignores it unless use_sliding_window is true."""
    return None if fields.get("use_sliding_window") is False else fields.get("sliding_window")


def _check_required(fields: Fields) -> None:
    for name in _REQUIRED:
        if name not in fields:
            message = f"{name} is missing in the model's config.json; add it"
            raise InvalidInputError(message, code="model_invalid")


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Return theta and the scaling from `rope_parameters` (transformers 5) or the two older fields."""
    older, given = fields.get("rope_scaling"), fields.get("rope_parameters")
    if older and given and older != given:
        limit = (
            "rope_parameters is there too and differs, and transformers reads the one or the other by its "
            "version; state the scaling in rope_parameters alone"
        )
        _refuse("rope_scaling", older, limit)
    given = given or older or {}
    if not isinstance(given, Mapping):
        _refuse("rope_scaling", given, "it must be an object with a rope_type")
    parameters = {"rope_type": given.get("type", "default"), "rope_theta": fields["rope_theta"], **given}
    parameters.pop("type", None)
    theta = parameters.pop("rope_theta")
    if parameters.pop("partial_rotary_factor", 1.0) != 1.0:
        _refuse("partial_rotary_factor", given["partial_rotary_factor"], "whole heads are rotated")
    if parameters["rope_type"] == "default":
        return theta, None
    if parameters["rope_type"] == "dynamic":
        limit = (
            "its frequencies depend on the longest sequence of a batch, so the loss would depend on the plan"
        )
        _refuse("rope_type", "dynamic", limit)
    if parameters["rope_type"] == "yarn":
        parameters = {"original_max_position_embeddings": fields.get("max_position_embeddings")} | parameters
    return theta, from_table(RopeScaling, parameters, "rope_scaling")


def _refuse(name: str, value: object, limit: str) -> NoReturn:
    message = f"{name} = {as_toml(value)} in the model's config.json is not supported: {limit}"
    raise InvalidInputError(message, code="model_unsupported")
