"""Messages between neighbouring pipeline stages: hidden states forward, their gradients back.

A plain message is the tensor itself. A float8 message has the scales of all tokens in float32, then their
elements in e4m3 (see `model/float8.py`): `H + 4` bytes for a token, in place of `2 H` in bfloat16. The
receiver computes with the rounded numbers, and the sender's backward takes their gradient for that of its own
numbers.

Rounding errors are not carried from one message to the next, as error feedback does: the tokens of one
message are not those of the next, and their numbers differ.

On CUDA torch holds the memory of a message until the device has passed it (see `receive_block.py`), so the
float8 messages of a list take turns in memory of the largest one's size: one of them arrives at a time, and
others wait until their receivers have them. All work with a message is in the stream of computation or ahead
of it: NCCL receives and sends behind the work that was launched before, and computation waits for both before
the memory is used again.

Legend: t tokens of this rank, H hidden.
"""

from collections.abc import Iterable
from typing import Protocol, Self

import torch
from torch import Tensor

from hydraulis.model.float8 import Quantize

_SCALE_BYTES = 4


class Messages(Protocol):
    """The form in which tensors travel between stages."""

    def of_list(self, shapes: Iterable[tuple[int, int]]) -> Self:
        """Return the messages of one instruction list.

        Args:
            shapes: Shapes of the tensors that travel.
        """

    def pack(self, x_tH: Tensor) -> Tensor:
        """Return the message of a tensor."""

    def sent(self, message: Tensor) -> None:
        """Take back the memory of a message of `pack`; the current stream has waited for its send."""

    def room(self, x_tH: Tensor) -> Tensor:
        """Return uninitialised memory for the message of a tensor that will be received."""

    def unpack(self, message: Tensor, x_tH: Tensor) -> None:
        """Write the tensor of a message that has arrived in the memory of `room`, and take that back."""


class PlainMessages:
    """Messages that are the tensors themselves, without a copy."""

    def of_list(self, shapes: Iterable[tuple[int, int]]) -> Self:  # noqa: ARG002
        """Return these messages, which have no memory of their own."""
        return self

    def pack(self, x_tH: Tensor) -> Tensor:
        """Return the tensor."""
        return x_tH

    def sent(self, message: Tensor) -> None:
        """Leave the tensor, whose memory is not that of messages."""

    def room(self, x_tH: Tensor) -> Tensor:
        """Return the tensor."""
        return x_tH

    def unpack(self, message: Tensor, x_tH: Tensor) -> None:
        """Leave the tensor, which is its message."""


class Float8Messages:
    """Messages in float8, uint8 [(H + 4) t]; a token with a number that is not finite has NaN.

    Args:
        quantize: Function that rounds a tensor to float8, row by row.
        most_bytes: Bytes of the largest message, if it is known.
    """

    def __init__(self, quantize: Quantize, most_bytes: int = 0) -> None:
        self._quantize = quantize
        self._most_bytes = most_bytes
        self._free: list[torch.UntypedStorage] = []

    def of_list(self, shapes: Iterable[tuple[int, int]]) -> Self:
        """Return messages with memory that ends with them."""
        return type(self)(self._quantize, max((_message_bytes(*shape) for shape in shapes), default=0))

    def pack(self, x_tH: Tensor) -> Tensor:
        """Return the message of a tensor: its scales, then its elements."""
        rounded = self._quantize(x_tH.detach())
        parts = rounded.scale_R1, rounded.value_RC
        return torch.cat([part.flatten().view(torch.uint8) for part in parts], out=self.room(x_tH))

    def sent(self, message: Tensor) -> None:
        """Let another message use the memory."""
        self._free.append(message.untyped_storage())

    def room(self, x_tH: Tensor) -> Tensor:
        """Return memory for the message of a tensor."""
        size = _message_bytes(*x_tH.shape)
        memory = self._free.pop() if self._free else None
        if memory is None or memory.nbytes() < size:
            room = torch.empty(max(size, self._most_bytes), dtype=torch.uint8, device=x_tH.device)
            memory = room.untyped_storage()
        # A tensor of its own, not a view of one that other messages change.
        return torch.empty(0, dtype=torch.uint8, device=x_tH.device).set_(memory, 0, (size,), (1,))

    def unpack(self, message: Tensor, x_tH: Tensor) -> None:
        """Write the elements of a message times their scales, without a rounding (see `float8.py`)."""
        scale, value = message.tensor_split([_SCALE_BYTES * len(x_tH)])
        x_tH.copy_(value.view(torch.float8_e4m3fn).view(x_tH.shape))
        x_tH *= scale.view(torch.float32).unsqueeze(1).to(x_tH.dtype)
        self.sent(message)


def _message_bytes(tokens: int, hidden: int) -> int:
    return tokens * (_SCALE_BYTES + hidden)
