"""Fields of a config.json that are read, and fields that are refused by name."""

from pathlib import Path
from typing import Any

import pytest

from helpers import refused
from hydraulis.config.hugging_face.read import from_hugging_face, read_max_positions, stated_fields
from hydraulis.config.model import RopeScaling

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 320,
}
YARN = {"type": "yarn", "factor": 4.0}


def test_a_family_implies_the_fields_that_its_file_lacks() -> None:
    changes: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": True},
        "mistral": {"sliding_window": None},
        "qwen2": {"num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": 4096},
        "qwen3": {"num_key_value_heads": 2},
    }
    llama, mistral, qwen2, qwen3 = (
        from_hugging_face(LLAMA | {"architectures": None, "model_type": family} | changes[family])
        for family in changes
    )
    assert (llama.attention_bias, llama.attention_output_bias, llama.qk_norm) == (True, True, False)
    assert (mistral.attention_bias, mistral.attention_output_bias, mistral.qk_norm) == (False, False, False)
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.attention_bias, qwen3.attention_output_bias, qwen3.qk_norm) == (False, False, True)
    assert [model.num_key_value_heads for model in (llama, mistral, qwen2, qwen3)] == [8, 8, 4, 2]
    assert [model.head_dim for model in (llama, mistral, qwen2, qwen3)] == [8, 8, 8, 128]
    assert llama.rope_theta == 10000.0


@pytest.mark.parametrize(("family", "heads"), [("llama", 64), ("mistral", 8), ("qwen2", 32), ("qwen3", 32)])
def test_absent_key_value_heads_have_the_default_of_transformers(family: str, heads: int) -> None:
    fields = LLAMA | {"model_type": family, "num_attention_heads": 64, "sliding_window": None}
    assert from_hugging_face(fields | {"head_dim": 8}).num_key_value_heads == heads


def test_key_value_heads_of_null_are_the_heads() -> None:
    changes = {"num_attention_heads": 64, "num_key_value_heads": None, "head_dim": 8}
    assert from_hugging_face(LLAMA | changes).num_key_value_heads == 64


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": 512}, 512),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 512}, None),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512}, 512),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["sliding_attention"]}, 4096),
        ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": None}, None),
    ],
)
def test_the_sliding_window_equals_that_of_transformers(changes: dict[str, Any], window: int | None) -> None:
    heads = {"num_key_value_heads": 8}
    assert from_hugging_face(LLAMA | heads | changes).sliding_window == window


def test_the_context_before_yarn_is_the_models_by_default() -> None:
    assert from_hugging_face(LLAMA | {"rope_scaling": YARN}).rope_scaling == RopeScaling(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=4096
    )
    given = YARN | {"original_max_position_embeddings": 1024}
    scaling = from_hugging_face(LLAMA | {"rope_scaling": given}).rope_scaling
    assert scaling is not None
    assert scaling.original_max_position_embeddings == 1024


FAMILIES = "llama, mistral, qwen2, qwen3"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model_type": "mixtral"}, ["model_type = 'mixtral'"]),
        ({"model_type": None}, [FAMILIES]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["architectures = 'LlamaForSequence"]),
        ({"architectures": ["GPT2LMHeadModel"]}, ["'GPT2LMHeadModel'", FAMILIES]),
        (
            {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
            ["model_type = 'gpt2'", FAMILIES],
        ),
        ({"hidden_act": "gelu"}, ["hidden_act = 'gelu'", "'silu'"]),
        ({"attention_dropout": 0.1}, ["attention_dropout = 0.1"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor = 0.5"]),
        (
            {"model_type": "mistral", "sliding_window": None, "attention_bias": True},
            ["attention_bias = true"],
        ),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
        (
            {"model_type": "mistral", "layer_types": ["linear_attention"]},
            ["'linear_attention'"],
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_type = 'dynamic'"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor = 0.5"]),
        ({"rope_scaling": "yarn"}, ["rope_scaling = 'yarn'", "rope_type"]),
        (
            {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            ["rope_scaling", "rope_parameters is there too and differs"],
        ),
        ({"logit_scale": 0.5}, ["logit_scale = 0.5"]),
    ],
)
def test_unsupported_fields_are_refused_by_name(changes: dict[str, Any], parts: list[str]) -> None:
    with refused("model_unsupported", *parts):
        from_hugging_face(LLAMA | changes)


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "config_value", "rope_type = 'longrope'"),
        ({"rope_scaling": YARN | {"mscale": 1.0}}, "config_unknown_key", "key 'mscale'"),
        ({"rope_scaling": {"type": "linear"}}, "config_missing_key", "key 'factor'"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "config_value", "rope_type = 'llama3'"),
        ({"vocab_size": "320"}, "model_invalid", "vocab_size = '320'"),
    ],
)
def test_values_are_checked_like_those_of_a_run(changes: dict[str, Any], code: str, part: str) -> None:
    with refused(code, part):
        from_hugging_face(LLAMA | changes)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_field_is_named(name: str) -> None:
    with refused("model_invalid", name):
        from_hugging_face({key: value for key, value in LLAMA.items() if key != name})


@pytest.mark.parametrize(
    ("text", "code"), [(None, "file_unreadable"), ("{", "config_syntax"), ("[]", "config_syntax")]
)
def test_files_without_a_model_are_refused(text: str | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with refused(code, "config.json"):
        from_hugging_face(path)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"architectures": [5]}, "model_unsupported"),
        ({"architectures": 5}, "model_unsupported"),
        ({"architectures": "LlamaForCausalLM"}, "model_unsupported"),
        ({"layer_types": [None]}, "model_unsupported"),
        ({"layer_types": {"a": 1}}, "model_unsupported"),
        ({"model_type": ["llama"]}, "model_unsupported"),
        ({"rope_parameters": 5}, "model_unsupported"),
        ({"rope_parameters": {"rope_type": ["default"], "factor": 2.0}}, "config_value"),
        ({"rope_parameters": {"rope_theta": "x"}}, "model_invalid"),
        ({"num_hidden_layers": 10**400}, "model_invalid"),
        ({"num_hidden_layers": 16_385}, "model_invalid"),
        ({"vocab_size": 2**63}, "model_invalid"),
        ({"intermediate_size": 2**63 - 1}, "model_invalid"),
        ({"num_attention_heads": 2**40, "head_dim": 2**40}, "model_invalid"),
        ({"initializer_range": 10**400}, "model_invalid"),
        ({"rms_norm_eps": [1]}, "model_invalid"),
        ({"attention_bias": "yes"}, "model_invalid"),
        ({"sliding_window": "all"}, "model_invalid"),
    ],
)
def test_a_field_of_another_type_or_size_is_refused(changes: dict[str, Any], code: str) -> None:
    with refused(code):
        from_hugging_face(LLAMA | changes)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"5", b'{"a":' * 100_000, b"9" * 5_000])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    for read in (from_hugging_face, stated_fields, read_max_positions):
        with refused("config_syntax", path):
            read(path)


@pytest.mark.parametrize("rope", ["5", '"x"', "[1]", "null"])
def test_the_fields_of_a_file_with_another_rope_are_listed(tmp_path: Path, rope: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"rope_parameters": {rope}, "hidden_size": 1}}')
    assert stated_fields(path) >= {"hidden_size", "rope_parameters"}


def test_the_configuration_of_a_run_is_no_model() -> None:
    with refused("model_unsupported", "that of a run", "hydraulis export"):
        from_hugging_face({"model": {"hidden_size": 64}, "planner": {"strategies": ["search"]}})
