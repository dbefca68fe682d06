"""Rotary positions in the rotate-half order of Hugging Face checkpoints.

Dimension i of a head is paired with dimension i + D/2, and the pair turns by
`position * theta ** (-2 i / D)`: its frequency, which a model that was made for a longer context changes.

Legend: T tokens of the packed micro-batch, N heads, D head dim, P = D/2 pairs.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hydraulis.config.model import ModelConfig, RopeScaling
from hydraulis.model.on_device import on_device
from hydraulis.model.wide import wide_dtype


class RotaryTable(NamedTuple):
    """The cosine and sine of every token's angles, made once per micro-batch and used by all layers.

    Attributes:
        cos_TD: cosines; both halves of D hold the same D/2 angles.
        sin_TD: sines, likewise.
    """

    cos_TD: Tensor
    sin_TD: Tensor

    def rotate(self, x_TND: Tensor) -> Tensor:
        """Turn every head of every token by its position; shape and dtype stay."""
        left, right = x_TND.chunk(2, dim=-1)
        turned_TND = torch.cat((-right, left), dim=-1)
        return x_TND * self.cos_TD[:, None, :] + turned_TND * self.sin_TD[:, None, :]


def rotary_table(position_T: Tensor, config: ModelConfig, dtype: torch.dtype) -> RotaryTable:
    """Make the table for these positions.

    Args:
        position_T: position of each token in its own sequence.
        config: gives the head dim, the base of the frequencies and their scaling.
        dtype: of the heads that will be turned.

    Returns:
        The table in `dtype`. Angles are computed in at least float32: bfloat16 cannot even hold the
        positions above 256 exactly.
    """
    wide = wide_dtype(dtype)
    frequency_P = on_device(rotary_frequencies(config, wide), position_T.device)
    half_angle_TP = position_T.to(wide)[:, None] * frequency_P
    angle_TD = torch.cat((half_angle_TP, half_angle_TP), dim=-1)
    size = _attention_factor(config.rope_scaling)
    return RotaryTable(cos_TD=(size * angle_TD.cos()).to(dtype), sin_TD=(size * angle_TD.sin()).to(dtype))


def rotary_frequencies(config: ModelConfig, dtype: torch.dtype) -> Tensor:
    """Give frequency_P, in radians per token, from the fastest pair to the slowest."""
    exponent_P = torch.arange(0, config.head_dim, 2, dtype=dtype) / config.head_dim
    frequency_P = config.rope_theta**-exponent_P
    scaling = config.rope_scaling
    if scaling is None:
        return frequency_P
    match scaling.rope_type:
        case "linear":
            slowed_P = torch.ones_like(frequency_P)
        case "llama3":
            slowed_P = _slowed_by_llama3(frequency_P, scaling)
        case "yarn":
            slowed_P = _slowed_by_yarn(config, scaling, dtype)
    return frequency_P * (slowed_P / scaling.factor + (1 - slowed_P))


def _slowed_by_llama3(frequency_P: Tensor, scaling: RopeScaling) -> Tensor:
    """Share of the factor for each pair: linear in how often it turns in the original context.

    The Llama 3 herd of models, arXiv:2407.21783; the formula as in the model code of Llama 3.1.
    """
    turns_P = _original_context(scaling) * frequency_P / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((high - turns_P) / (high - low)).clamp(0, 1)


def _slowed_by_yarn(config: ModelConfig, scaling: RopeScaling, dtype: torch.dtype) -> Tensor:
    """Share of the factor for each pair: linear in its number, between two that turn often and seldom.

    YaRN, arXiv:2309.00071, section 3.2; the two pairs are rounded outwards as the authors' code does.
    """

    def pair_that_turns(times: float) -> float:
        turns_of_first = _original_context(scaling) / (2 * math.pi)
        return config.head_dim * math.log(turns_of_first / times) / (2 * math.log(config.rope_theta))

    first = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_that_turns(scaling.beta_slow)), config.head_dim - 1)
    pair_P = torch.arange(config.head_dim // 2, dtype=dtype)
    # One pair cannot be a ramp.
    return ((pair_P - first) / max(last - first, 1e-3)).clamp(0, 1)


def _attention_factor(scaling: RopeScaling | None) -> float:
    """YaRN's size of queries and keys, arXiv:2309.00071, section 3.4; 1 for the others."""
    if scaling is None or scaling.rope_type != "yarn":
        return 1.0
    return scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1.0


def _original_context(scaling: RopeScaling) -> int:
    assert scaling.original_max_position_embeddings is not None  # RopeScaling has checked it
    return scaling.original_max_position_embeddings
