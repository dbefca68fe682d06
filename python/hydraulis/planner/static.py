"""What the best static strategy would have needed for the same batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from hydraulis._core import Cluster, CostProfile, Link, Planner
from hydraulis.config.kinds import MemoryRule


@dataclass(frozen=True, slots=True)
class StaticTotal:
    """One strategy kept for every batch.

    Attributes:
        strategy: as written.
        planned_ms: predicted time of all batches together, dispatched and packed by the same planner.
    """

    strategy: str
    planned_ms: float


@dataclass(slots=True)
class StaticComparison:
    """Plans every batch under each strategy that could serve a whole run by itself.

    A static strategy must admit the longest sequence of the run, not only that of the batch at hand.

    Attributes:
        longest: tokens of the longest sequence there is.
    """

    longest: int
    _planners: dict[str, Planner] = field(init=False, default_factory=dict)
    _totals: dict[str, float] = field(init=False, default_factory=dict)

    @classmethod
    def for_strategies(
        cls,
        profile: CostProfile,
        cluster: Cluster,
        strategies: Sequence[str],
        longest: int,
        link: Link | None = None,
        memory: MemoryRule = "cap",
    ) -> Self:
        """Compare with those of `strategies` that admit a sequence of `longest` tokens by the memory rule.

        By a link, batches take their steps: iterations, and what of their transfers is not hidden.
        """
        comparison = cls(longest)
        for strategy in strategies:
            planner = Planner(profile, cluster, strategies=[strategy], link=link, memory=memory)
            if planner.longest_admitted >= longest:
                comparison._planners[strategy] = planner
                comparison._totals[strategy] = 0.0
        return comparison

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Add a batch."""
        for strategy, planner in self._planners.items():
            self._totals[strategy] += planner.plan(lengths).step_ms

    def best(self) -> StaticTotal | None:
        """Return the strategy of least total time; None if no strategy admits the longest sequence."""
        if not self._totals:
            return None
        strategy = min(self._totals, key=lambda name: self._totals[name])
        return StaticTotal(strategy, self._totals[strategy])
