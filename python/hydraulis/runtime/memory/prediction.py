"""Predicted memory of ranks against their measured memory."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from hydraulis.runtime.records.metrics import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Error of predicted memory over all ranks and iterations with a measurement.

    Attributes:
        planned_bytes: Predicted bytes of the rank and iteration with the most measured bytes.
        peak_bytes: Measured bytes of that rank and iteration.
        median_error: Median of the absolute relative error.
        worst_error: Least relative error: below 0 if a rank needed more than was predicted.
    """

    planned_bytes: int
    peak_bytes: int
    median_error: float
    worst_error: float

    @classmethod
    def from_metrics(cls, metrics: Iterable[StepMetrics]) -> Self | None:
        """Compare the iterations' predictions with their measurements; None without measurements."""
        pairs = [pair for one in metrics for pair in one.rank_memory]
        if not pairs:
            return None
        planned, peak = max(pairs, key=lambda pair: pair[1])
        return cls(
            planned_bytes=planned,
            peak_bytes=peak,
            median_error=statistics.median(abs(planned / peak - 1) for planned, peak in pairs),
            worst_error=min(planned / peak - 1 for planned, peak in pairs),
        )
