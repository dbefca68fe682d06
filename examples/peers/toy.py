"""A toy data set of long-tailed lengths, and a small Llama, for the examples of this folder."""

import datasets
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 128


def toy_data(sequences: int = 160, longest: int = 256) -> datasets.Dataset:
    """Count upwards from a random token, so that there is something to learn."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.5, 1.0, sequences), 2, longest).astype(int)
    starts = rng.integers(0, VOCABULARY, sequences)
    rows = [
        ((start + np.arange(size)) % VOCABULARY).tolist() for start, size in zip(starts, lengths, strict=True)
    ]
    return datasets.Dataset.from_dict({"input_ids": rows})


def toy_model() -> LlamaForCausalLM:
    """Make the same model on every rank."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)
