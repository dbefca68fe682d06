"""Rotary positions in the rotate-half order of Hugging Face checkpoints.

Dimension i of a head is paired with dimension i + D/2. The pair rotates by `position * frequency` with
`frequency = theta ** (-2 i / D)`; models with an extended context scale the frequencies.

Legend: T tokens of the packed micro-batch, N heads, D head dim, P = D/2 pairs.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.config.model import ModelConfig, RopeScaling
from hydraulis.model.tensors import to_device, wide_dtype

# Rotation of heads by cosines and sines, and its direction: 1, or -1 for the negative angles.
Rotate = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def rotate_heads(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor, direction: int) -> Tensor:
    """Rotate every head of every token by its angles, or by the negative ones with `direction` -1."""
    y_TND = x_TND * cos_TD[:, None, :]
    (left, right), (sin_T1P, _) = x_TND.chunk(2, dim=-1), sin_TD[:, None, :].chunk(2, dim=-1)
    y_left, y_right = y_TND.chunk(2, dim=-1)
    y_left.addcmul_(right, sin_T1P, value=-direction)
    y_right.addcmul_(left, sin_T1P, value=direction)
    return y_TND


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor, kernel: Rotate) -> Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        ctx.kernel = kernel
        return kernel(x_TND, cos_TD, sin_TD, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TND: Tensor) -> tuple[Tensor, None, None, None]:
        # The transpose of a rotation is the one by the negative angles.
        return ctx.kernel(dy_TND, *ctx.saved_tensors, -1), None, None, None


_rotation: Callable[[Tensor, Tensor, Tensor, Rotate], Tensor] = _Rotation.apply


class RotaryTable(NamedTuple):
    """Cosine and sine of every token's angles, computed once per micro-batch for all layers.

    Attributes:
        cos_TD: Cosines; both halves of D have the same D/2 angles.
        sin_TD: Sines, in the same order.
        kernel: Function that rotates heads by them, without gradients.
    """

    cos_TD: Tensor
    sin_TD: Tensor
    kernel: Rotate = rotate_heads

    def rotate(self, x_TND: Tensor) -> Tensor:
        """Rotate every head of every token by its position; shape and dtype do not change."""
        return _rotation(x_TND, self.cos_TD, self.sin_TD, self.kernel)


def rotary_table(position_T: Tensor, config: ModelConfig, dtype: torch.dtype) -> RotaryTable:
    """Compute the table for the given positions.

    Args:
        position_T: Position of each token in its own sequence.
        config: Configuration of the model: head dim, base of the frequencies and their scaling.
        dtype: Dtype of the heads.

    Returns:
        The table in `dtype`. The angles are computed in at least float32, because bfloat16 cannot represent
        every position above 256.
    """
    wide = wide_dtype(dtype)
    frequency_P = rotary_frequencies(config, wide, position_T.device)
    half_angle_TP = position_T.to(wide)[:, None] * frequency_P
    angle_TD = torch.cat((half_angle_TP, half_angle_TP), dim=-1)
    factor = _attention_factor(config.rope_scaling)
    return RotaryTable(cos_TD=(factor * angle_TD.cos()).to(dtype), sin_TD=(factor * angle_TD.sin()).to(dtype))


@functools.cache
def rotary_frequencies(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return frequency_P in radians per token, from the fastest pair to the slowest.

    The process keeps it on the device: a copy for each micro-batch would allocate pinned memory, which can
    make the host wait for the device.
    """
    return to_device(_frequencies(config, dtype), device)


def _frequencies(config: ModelConfig, dtype: torch.dtype) -> Tensor:
    exponent_P = torch.arange(0, config.head_dim, 2, dtype=dtype) / config.head_dim
    frequency_P = config.rope_theta**-exponent_P
    scaling = config.rope_scaling
    if scaling is None:
        return frequency_P
    match scaling.rope_type:
        case "linear":
            interpolation_P = torch.ones_like(frequency_P)
        case "llama3":
            interpolation_P = _llama3_interpolation(frequency_P, scaling)
        case "yarn":
            interpolation_P = _yarn_interpolation(config, scaling, dtype)
    return frequency_P * (interpolation_P / scaling.factor + (1 - interpolation_P))


def _llama3_interpolation(frequency_P: Tensor, scaling: RopeScaling) -> Tensor:
    """Return each pair's share of the factor: linear in its rotations within the original context.

    The Llama 3 herd of models, arXiv:2407.21783; the formula is the one in the model code of Llama 3.1.
    """
    rotations_P = _original_context(scaling) * frequency_P / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((high - rotations_P) / (high - low)).clamp(0, 1)


def _yarn_interpolation(config: ModelConfig, scaling: RopeScaling, dtype: torch.dtype) -> Tensor:
    """Return each pair's share of the factor: linear in its index between a fast and a slow pair.

    YaRN, arXiv:2309.00071, section 3.2; the two pairs are rounded outwards as in the authors' code.
    """

    def pair_index(rotations: float) -> float:
        first_rotations = _original_context(scaling) / (2 * math.pi)
        return config.head_dim * math.log(first_rotations / rotations) / (2 * math.log(config.rope_theta))

    first = max(math.floor(pair_index(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_index(scaling.beta_slow)), config.head_dim - 1)
    pair_P = torch.arange(config.head_dim // 2, dtype=dtype)
    # The lower limit avoids a division by 0 where both pairs are the same.
    return ((pair_P - first) / max(last - first, 1e-3)).clamp(0, 1)


def _attention_factor(scaling: RopeScaling | None) -> float:
    """Return YaRN's factor of queries and keys, arXiv:2309.00071, section 3.4; 1 without YaRN."""
    if scaling is None or scaling.rope_type != "yarn":
        return 1.0
    return scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1.0


def _original_context(scaling: RopeScaling) -> int:
    assert scaling.original_max_position_embeddings is not None  # checked by RopeScaling
    return scaling.original_max_position_embeddings
