"""Models of transformers that keep packed sequences apart, and others that do not."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from helpers import refused
from hydraulis.batching.collators import check_packing

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 4, "head_dim": 8, "sliding_window": 16}


def make_model(kind: str, attention: str, **changed: Any) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**(BASE | changed))
    models: Any = AutoModelForCausalLM
    return models.from_config(config, attn_implementation=attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "attention", "changed"),
    [
        ("llama", "sdpa", {}),
        ("llama", "eager", {}),
        ("qwen2", "sdpa", {}),
        ("qwen3", "sdpa", {"head_dim": 8}),
        ("mistral", "eager", {}),
        ("mixtral", "sdpa", {"num_local_experts": 4}),
        ("gemma", "sdpa", {"head_dim": 8}),
        ("phi3", "sdpa", {}),
        ("olmo", "sdpa", {}),
        ("glm4", "sdpa", {"head_dim": 8}),
        ("cohere2", "eager", {"sliding_window": 16}),
    ],
)
def test_models_that_keep_sequences_apart_pass(
    kind: str, attention: str, changed: dict[str, Any], dtype: torch.dtype
) -> None:
    check_packing(make_model(kind, attention, **changed).to(dtype))


@pytest.mark.parametrize(
    ("kind", "attention", "changed"),
    [
        ("opt", "sdpa", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
        ("falcon", "eager", {}),
        ("bloom", "eager", {"n_layer": 4, "n_head": 4}),
        ("mpt", "eager", {"d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 128}),
        ("gpt_oss", "eager", EXPERTS),
        ("mamba", "eager", {"state_size": 8}),
        ("lfm2", "sdpa", {"layer_types": ["conv", "full_attention"] * 2, "block_ff_dim": 32}),
    ],
)
def test_models_that_mix_sequences_are_refused(kind: str, attention: str, changed: dict[str, Any]) -> None:
    model = make_model(kind, attention, **changed)
    with refused("model_unsupported", type(model).__name__, attention, "padded"):
        check_packing(model)


def test_models_that_cannot_be_checked_are_refused() -> None:
    with refused("model_unsupported", "Linear", "transformers"):
        check_packing(torch.nn.Linear(2, 2))
    with torch.device("meta"):
        empty = make_model("llama", "sdpa")
    with refused("model_unsupported", "LlamaForCausalLM", "device meta", "load its weights"):
        check_packing(empty)
    small: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "d_ff": 48, "num_layers": 1, "num_heads": 2}
    models: Any = AutoModelForSeq2SeqLM
    with refused("model_unsupported", "T5ForConditionalGeneration", "padded"):
        check_packing(models.from_config(CONFIG_MAPPING["t5"](**small)))


def test_the_mode_of_each_module_stays() -> None:
    model = make_model("llama", "sdpa", attention_dropout=0.5)
    model.train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    check_packing(torch.nn.DataParallel(model))
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
