"""Planned memory against what ranks held."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from hydraulis.runtime.records.metrics import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """How far predicted memory is off, over all ranks and iterations of which it is known.

    Attributes:
        planned_bytes: of the rank and iteration that held most.
        held_bytes: there.
        median_error: of the planned bytes relative to the held ones, whichever is more.
        worst_error: planned over held, less 1, where that is least: below 0 if too little was planned there.
    """

    planned_bytes: int
    held_bytes: int
    median_error: float
    worst_error: float

    @classmethod
    def of(cls, metrics: Iterable[StepMetrics]) -> Self | None:
        """Sum iterations up; None if nothing is known of them."""
        pairs = [pair for one in metrics for pair in one.rank_memory]
        if not pairs:
            return None
        planned, held = max(pairs, key=lambda pair: pair[1])
        return cls(
            planned_bytes=planned,
            held_bytes=held,
            median_error=statistics.median(abs(planned / held - 1) for planned, held in pairs),
            worst_error=min(planned / held - 1 for planned, held in pairs),
        )
