"""Totals over the iterations of a run, in memory that does not grow with their number."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from hydraulis.runtime.memory.prediction import EvenSample, MemoryErrors, MemoryPrediction
from hydraulis.runtime.records.metrics import StepMetrics


@dataclass(slots=True)
class Totals:
    """Totals of the added iterations; times are in milliseconds.

    The medians of a long run are those of an `EvenSample`.

    Attributes:
        steps: Number of iterations.
        first: Metrics of the first iteration.
        last: Metrics of the last iteration.
        sequences: Sequences of all batches.
        moved: Sequences that were trained in another step than that of their own batch.
        tokens: Tokens of all batches, without padding.
        wall_ms: Wall time of all iterations.
        planned_ms: Sum of the planned times.
        measured_ms: Sum of the measured times.
        transfer_ms: Sum of the exposed transfer times of rank 0.
        groups_ms: Wall time of creating process groups.
        memory_bytes: Maximum of `StepMetrics.memory_bytes`.
        ranks_per_device: Maximum of `StepMetrics.ranks_per_device`.
        strategies: Number of iterations of each strategy.
        planned: Planned times in the order of the iterations.
    """

    steps: int = 0
    first: StepMetrics | None = None
    last: StepMetrics | None = None
    sequences: int = 0
    moved: int = 0
    tokens: int = 0
    wall_ms: float = 0.0
    planned_ms: float = 0.0
    measured_ms: float = 0.0
    transfer_ms: float = 0.0
    groups_ms: float = 0.0
    memory_bytes: int = 0
    ranks_per_device: int = 1
    strategies: Counter[str] = field(default_factory=Counter)
    planned: EvenSample = field(default_factory=EvenSample)
    _bubble: float = 0.0
    _imbalance: float = 0.0
    _mfu_by_ms: float = 0.0
    _ms_with_mfu: float = 0.0
    _plan_ms: EvenSample = field(default_factory=EvenSample)
    _errors: EvenSample = field(default_factory=EvenSample)
    _memory: MemoryErrors = field(default_factory=MemoryErrors)

    @classmethod
    def of(cls, metrics: Iterable[StepMetrics]) -> Self:
        """Return the totals of some iterations."""
        totals = cls()
        for one in metrics:
            totals.add(one)
        return totals

    def add(self, metrics: StepMetrics) -> None:
        """Add the next iteration."""
        self.steps += 1
        self.first = self.first or metrics
        self.last = metrics
        self.sequences += metrics.sequences
        self.moved += metrics.moved
        self.tokens += metrics.tokens
        self.wall_ms += metrics.wall_ms
        self.planned_ms += metrics.planned_ms
        self.measured_ms += metrics.measured_ms
        self.transfer_ms += metrics.transfer_ms
        self.groups_ms += metrics.groups_ms
        self.memory_bytes = max(self.memory_bytes, metrics.memory_bytes)
        self.ranks_per_device = max(self.ranks_per_device, metrics.ranks_per_device)
        self.strategies[metrics.strategy] += 1
        self.planned.add(metrics.planned_ms)
        self._bubble += metrics.bubble
        self._imbalance += metrics.imbalance
        if metrics.mfu is not None:
            self._mfu_by_ms += metrics.mfu * metrics.wall_ms
            self._ms_with_mfu += metrics.wall_ms
        self._plan_ms.add(metrics.plan_ms)
        if metrics.prediction_error is not None:
            self._errors.add(abs(metrics.prediction_error))
        self._memory.add(metrics.rank_memory)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of wall time over at least one iteration, without padding."""
        return 1e3 * self.tokens / self.wall_ms

    @property
    def mfu(self) -> float | None:
        """Mean MFU weighted by wall time, over the iterations that have one; None without any."""
        return self._mfu_by_ms / self._ms_with_mfu if self._ms_with_mfu else None

    @property
    def bubble(self) -> float:
        """Mean bubble of at least one iteration."""
        return self._bubble / self.steps

    @property
    def imbalance(self) -> float:
        """Mean imbalance of at least one iteration."""
        return self._imbalance / self.steps

    @property
    def plan_ms(self) -> float:
        """Median wall time of planning over at least one iteration."""
        return statistics.median(self._plan_ms.values)

    @property
    def median_error(self) -> float | None:
        """Median absolute prediction error of the measured iterations; None without any."""
        return statistics.median(self._errors.values) if self._errors.values else None

    @property
    def memory(self) -> MemoryPrediction | None:
        """Error of predicted memory; None without a measurement."""
        return self._memory.prediction()
