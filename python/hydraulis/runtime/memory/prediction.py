"""Predicted memory of ranks against their measured memory."""

import math
import statistics
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Error of predicted memory over all ranks and iterations with a measurement.

    Attributes:
        planned_bytes: Predicted bytes of the rank and iteration with the most measured bytes.
        peak_bytes: Measured bytes of that rank and iteration.
        median_error: Median of the absolute relative error, of an `EvenSample` in a long run.
        worst_error: Least relative error: below 0 if a rank needed more than was predicted.
    """

    planned_bytes: int
    peak_bytes: int
    median_error: float
    worst_error: float


@dataclass(slots=True)
class MemoryErrors:
    """Collects predictions and measurements of ranks, in memory that does not grow with their number."""

    _highest: tuple[int, int] = (0, 0)
    _worst: float = math.inf
    _errors: EvenSample = field(default_factory=EvenSample)

    def add(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Add the predicted and the measured bytes of ranks that have both, of one iteration."""
        for planned, peak in pairs:
            if peak > self._highest[1]:
                self._highest = planned, peak
            self._worst = min(self._worst, planned / peak - 1)
            self._errors.add(abs(planned / peak - 1))

    def prediction(self) -> MemoryPrediction | None:
        """Return the error over all added pairs; None without any."""
        if not self._errors.values:
            return None
        planned, peak = self._highest
        return MemoryPrediction(
            planned_bytes=planned,
            peak_bytes=peak,
            median_error=statistics.median(self._errors.values),
            worst_error=self._worst,
        )
