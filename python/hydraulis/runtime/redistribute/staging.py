"""Memory for what is on its way."""

import torch
from torch import Tensor


class Staging:
    """Memory that grows to what it is asked for, and then stays; whoever knows that before asks at once.

    Args:
        like: of the type and on the device of what is staged.

    Attributes:
        room: all of it.
    """

    def __init__(self, like: Tensor) -> None:
        self.room = like.new_empty(0)

    def take(self, elements: int, dtype: torch.dtype | None = None) -> Tensor:
        """Give so many elements; their values mean nothing.

        Args:
            elements: how many.
            dtype: of them, if not that of the room: no wider one.
        """
        if len(self.room) < elements:
            self.room = self.room.new_empty(elements)
        if self.room.is_cuda:
            # Computation and what is beside it take turns: outgrown, it is given back once both are past it.
            self.room.record_stream(torch.cuda.current_stream(self.room.device))
        return self.room.view(dtype or self.room.dtype)[:elements]
