"""A sample of a sequence of numbers, evenly spread and of bounded size."""

from array import array

MOST_VALUES = 1 << 16


class EvenSample:
    """Keeps every number of a sequence, or every `stride`-th of a long one, the first included.

    Attributes:
        values: The kept numbers, at most `MOST_VALUES`.
        stride: Distance of the kept numbers in the sequence, a power of 2.
    """

    def __init__(self) -> None:
        self.values = array("d")
        self.stride = 1
        self._count = 0

    def add(self, value: float) -> None:
        """Add the next number of the sequence."""
        if self._count % self.stride == 0:
            if len(self.values) == MOST_VALUES:
                self.values = self.values[::2]
                self.stride *= 2
            # After the stride doubled, this place may no longer be one of its multiples.
            if self._count % self.stride == 0:
                self.values.append(value)
        self._count += 1
