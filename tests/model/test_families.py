"""Logits and parameter names of every family against transformers, from its config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from hydraulis.config.hugging_face.read import from_hugging_face
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.sequences import PackedSequences
from small_model import bind_parameters, logits_of

SHAPE: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5}),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 12}),
    "llama 3.2": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral nemo": ("Mistral", {"sliding_window": None, "head_dim": 10}),
    # A window of the longest sequence changes nothing.
    "mistral with a window": ("Mistral", {"sliding_window": 37}),
    "qwen3 with a window": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 37, "max_window_layers": 1},
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen2 sharp yarn": ("Qwen2", {"rope_parameters": YARN | {"beta_fast": 1.1, "attention_factor": 0.9}}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 with biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
}
LENGTHS = [37, 1, 11]


@pytest.fixture(params=FAMILIES)
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    """Build a model with random parameters, including its norms and biases."""
    family, changes = FAMILIES[request.param]
    config = getattr(transformers, f"{family}Config")(**SHAPE | changes)
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(len(parameter)))
    return model


def decoder_of(reference: PreTrainedModel, folder: Path) -> Decoder:
    """Build the decoder from the config.json of `reference`, with its parameters by name."""
    reference.config.save_pretrained(folder)
    config = from_hugging_face(folder / "config.json")
    with torch.device("meta"):
        model = Decoder(config)
    state = reference.state_dict()
    names = {checkpoint_name(name) for name, _ in model.named_parameters()}
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert names == set(state) - tied
    bind_parameters(model, lambda name: state[checkpoint_name(name)])
    return model


def test_logits_are_those_of_transformers(reference: PreTrainedModel, tmp_path: Path) -> None:
    model = decoder_of(reference, tmp_path)
    token_T = torch.randint(SHAPE["vocab_size"], (sum(LENGTHS),))
    logits_TV = logits_of(model, token_T, PackedSequences.from_lengths(LENGTHS, "cpu"))
    for mine, tokens in zip(logits_TV.split(LENGTHS), token_T.split(LENGTHS), strict=True):
        expected = reference(tokens[None]).logits[0]
        # Logits of a standard deviation of about 3.
        torch.testing.assert_close(mine, expected, rtol=0, atol=5e-5)


def test_the_fields_of_transformers_4_have_the_same_meaning(
    reference: PreTrainedModel, tmp_path: Path
) -> None:
    reference.config.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    rope = fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["rope_scaling"] = (
        None if rope["rope_type"] == "default" else rope | {"type": rope.pop("rope_type")}
    )
    assert from_hugging_face(fields) == from_hugging_face(tmp_path / "config.json")
