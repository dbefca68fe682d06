"""A small float64 decoder and token batches for it, the same in every process.

Legend: T tokens of the packed micro-batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydraulis.config.model import ModelConfig, RopeScaling
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import master_parameter_name, row_of
from hydraulis.model.sequences import IGNORE_INDEX, Sequences
from hydraulis.parallel.tensor import split_range
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters

SEED = 7

TINY_SECTION = """
[model]
vocab_size = 256
hidden_size = 16
intermediate_size = 20
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
"""
"""The model section of a run on bytes, small enough for fast tests."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_scaling": RopeScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=16),
    },
    "mistral": {"head_dim": 10},
    "qwen2": {"attention_bias": True, "tie_word_embeddings": True},
    "qwen3": {
        "qk_norm": True,
        "rope_scaling": RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=8),
    },
    "every bias": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
}
"""Changes of the small model per family, and one model with every bias."""


def small_config(**changes: Any) -> ModelConfig:
    """Return a config with grouped queries, an unevenly split vocabulary and large initial weights."""
    shape: dict[str, Any] = {
        "vocab_size": 37,
        "hidden_size": 24,
        "intermediate_size": 42,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 6,
        "initializer_range": 0.3,
    }
    return ModelConfig(**(shape | changes))


def build_decoder(config: ModelConfig, dtype: torch.dtype = torch.float64) -> Decoder:
    """Build a whole decoder with norms other than ones and biases other than zeros."""
    with torch.device("meta"):
        model = Decoder(config)

    def value_of(name: str) -> Tensor:
        value = initial_value(name, config, SEED, dtype)
        return value if value.dim() > 1 else value + torch.linspace(-0.3, 0.3, len(value), dtype=dtype)

    bind_parameters(model, value_of)
    return model


def initial_value(name: str, config: ModelConfig, seed: int, dtype: torch.dtype) -> Tensor:
    """Draw a whole parameter as the ranks draw their slices of it."""
    parameters = ModelParameters.from_config(config)
    drawn = InitialValues(parameters, seed, dtype).read(name, 0, parameters.shapes[name].numel())
    return parameters.view(drawn, name).contiguous()


def bind_parameters(model: Decoder, value_of: Callable[[str], Tensor]) -> None:
    """Replace every parameter of the model, by name."""
    for name, _ in list(model.named_parameters()):
        module_name, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module_name), leaf, nn.Parameter(value_of(name)))
    model.tie_weights()


def logits_of(model: Decoder, token_T: Tensor, sequences: Sequences) -> Tensor:
    """Return the whole logits_TV, which training never stores."""
    assert model.lm_head is not None
    logits_TV: Tensor = model.lm_head(model(token_T, sequences))
    return logits_TV


def token_loss(logits_TV: Tensor, target_T: Tensor, denominator: int) -> Tensor:
    """Compute the loss by torch's cross entropy of whole logits."""
    wide_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    return F.cross_entropy(wide_TV, target_T, ignore_index=IGNORE_INDEX, reduction="sum") / denominator


def random_tokens(config: ModelConfig, lengths: Sequence[int], *, padded: bool) -> tuple[Tensor, Tensor]:
    """Draw tokens_T and target_T; with `padded`, the last segment is padding without targets."""
    generator = torch.Generator().manual_seed(SEED)
    token_T = torch.randint(config.vocab_size, (sum(lengths),), generator=generator)
    target_T = token_T.roll(-1)
    ends = torch.tensor(lengths).cumsum(0)
    target_T[ends - 1] = IGNORE_INDEX
    if padded:
        target_T[-lengths[-1] :] = IGNORE_INDEX
    return token_T, target_T


def slice_rows(name: str, rows: int, config: ModelConfig, tp: int, tensor_slice: int) -> range:
    """Return the rows of one of tp slices of a parameter with `rows` in its split dim."""
    units = row_of(master_parameter_name(name, config), config).split_units
    part = split_range(units, tp, tensor_slice)
    return range(part.start * rows // units, part.stop * rows // units)


def split_dim(name: str, config: ModelConfig) -> int:
    """Return the split dim of a parameter, or 0 if it has none."""
    return row_of(master_parameter_name(name, config), config).split_dim or 0


def count_targets(target_T: Tensor) -> int:
    return int((target_T != IGNORE_INDEX).sum())
