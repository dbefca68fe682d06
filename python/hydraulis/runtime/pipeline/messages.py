"""Messages between neighbouring pipeline stages: hidden states forward, their gradients back.

A plain message is the tensor itself. A float8 message has the scales of all tokens in float32, then their
elements in e4m3 (see `model/float8.py`): `H + 4` bytes for a token, in place of `2 H` in bfloat16. The
receiver computes with the rounded numbers, and the sender's backward takes their gradient for that of its own
numbers.

Rounding errors are not carried from one message to the next, as error feedback does: the tokens of one
message are not those of the next, and their numbers differ.

Legend: t tokens of this rank, H hidden.
"""

from typing import Protocol

import torch
from torch import Tensor

from hydraulis.model.float8 import Quantize, Quantized

_SCALE_BYTES = 4


class Messages(Protocol):
    """The form in which tensors travel between stages."""

    def pack(self, x_tH: Tensor) -> Tensor:
        """Return the message of a tensor."""

    def room(self, x_tH: Tensor) -> Tensor:
        """Return uninitialised memory for the message of a tensor that will be received."""

    def unpack(self, message: Tensor, x_tH: Tensor) -> None:
        """Write the tensor of a message that has arrived in the memory of `room`."""


class PlainMessages:
    """Messages that are the tensors themselves, without a copy."""

    def pack(self, x_tH: Tensor) -> Tensor:
        """Return the tensor."""
        return x_tH

    def room(self, x_tH: Tensor) -> Tensor:
        """Return the tensor."""
        return x_tH

    def unpack(self, message: Tensor, x_tH: Tensor) -> None:
        """Leave the tensor, which is its message."""


class Float8Messages:
    """Messages in float8, uint8 [(H + 4) t]; a token with a number that is not finite has NaN.

    Args:
        quantize: Function that rounds a tensor to float8, row by row.
    """

    def __init__(self, quantize: Quantize) -> None:
        self._quantize = quantize

    def pack(self, x_tH: Tensor) -> Tensor:
        """Return the message of a tensor: its scales, then its elements."""
        rounded = self._quantize(x_tH.detach())
        parts = rounded.scale_R1, rounded.value_RC
        return torch.cat([part.flatten().view(torch.uint8) for part in parts])

    def room(self, x_tH: Tensor) -> Tensor:
        """Return memory for the message of a tensor."""
        tokens, hidden = x_tH.shape
        return torch.empty(tokens * (_SCALE_BYTES + hidden), dtype=torch.uint8, device=x_tH.device)

    def unpack(self, message: Tensor, x_tH: Tensor) -> None:
        """Write the elements of a message times their scales."""
        scale, value = message.tensor_split([_SCALE_BYTES * len(x_tH)])
        rounded = Quantized(
            value.view(torch.float8_e4m3fn).view(x_tH.shape), scale.view(torch.float32).unsqueeze(1)
        )
        x_tH.copy_(rounded.widened(x_tH.dtype))
