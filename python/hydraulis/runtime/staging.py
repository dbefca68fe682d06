"""Memory for what is on its way."""

from torch import Tensor


class Staging:
    """Memory that grows to the largest bucket's share, and then stays.

    Args:
        like: of the type and on the device of what is staged.

    Attributes:
        room: all of it.
    """

    def __init__(self, like: Tensor) -> None:
        self.room = like.new_empty(0)

    def take(self, elements: int) -> Tensor:
        """Give so many elements; their values mean nothing."""
        if len(self.room) < elements:
            self.room = self.room.new_empty(elements)
        return self.room[:elements]
