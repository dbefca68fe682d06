"""The models of the measurements."""

from dataclasses import replace

from hydraulis.config.model import ModelConfig

# TinyLlama's shape: 1.1 billion parameters.
BILLION = ModelConfig(
    vocab_size=32_000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
)
# Llama 3 8B with 4 of its 32 layers: with AdamW all of it takes 144 GB, more than one device has.
EIGHT_BILLION = replace(
    BILLION,
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=4,
    num_key_value_heads=8,
    head_dim=128,
    rope_theta=500_000.0,
)
TINY = replace(
    BILLION,
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
