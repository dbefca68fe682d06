"""Shapes of published models, for predicted profiles without a download.

The fields are those of each model's `config.json` on Hugging Face that affect the shape.
"""

from typing import Any

LLAMA_3: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
QWEN_3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}

MODELS: dict[str, dict[str, Any]] = {
    # TinyLlama/TinyLlama_v1.1
    "tinyllama-1.1b": {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 2_048,
        "intermediate_size": 5_632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    # meta-llama/Meta-Llama-3-8B
    "llama-3-8b": LLAMA_3
    | {
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    # meta-llama/Meta-Llama-3-70B
    "llama-3-70b": LLAMA_3
    | {
        "hidden_size": 8_192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    # Qwen/Qwen3-8B
    "qwen3-8b": QWEN_3
    | {
        "hidden_size": 4_096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    # Qwen/Qwen3-32B
    "qwen3-32b": QWEN_3
    | {
        "hidden_size": 5_120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
}
"""Fields of each model's `config.json`, by the name that `analytic:MODEL:DEVICE` takes."""
