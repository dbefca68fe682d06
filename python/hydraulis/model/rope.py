"""Rotary positions in the rotate-half order of Hugging Face checkpoints.

Dimension i of a head is paired with dimension i + D/2, and the pair turns by
`position * theta ** (-2 i / D)`.

Legend: T tokens of the packed micro-batch, N heads, D head dim.
"""

from typing import NamedTuple

import torch
from torch import Tensor


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


def rotary_table(position_T: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> RotaryTable:
    """Make the table for these positions.

    Args:
        position_T: position of each token in its own sequence.
        head_dim: D, even.
        theta: base of the frequencies.
        dtype: of the heads that will be turned.

    Returns:
        The table in `dtype`. Angles are computed in at least float32: bfloat16 cannot even hold the
        positions above 256 exactly.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, dtype=wide, device=position_T.device) / head_dim
    half_angle = position_T.to(wide)[:, None] * theta**-exponent
    angle_TD = torch.cat((half_angle, half_angle), dim=-1)
    return RotaryTable(cos_TD=angle_TD.cos().to(dtype), sin_TD=angle_TD.sin().to(dtype))
