"""The best static strategy for given batches: one strategy that a whole run would keep."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from hydraulis._core import Cluster, CostProfile, Link, Planner
from hydraulis.config.kinds import MemoryRule


@dataclass(frozen=True, slots=True)
class StaticTotal:
    """A strategy and its predicted time for every batch.

    Attributes:
        strategy: Text of the strategy.
        planned_ms: Predicted time of all batches in ms, with dispatch and packing by the same planner.
    """

    strategy: str
    planned_ms: float


@dataclass(slots=True)
class StaticComparison:
    """Plans every batch under each static strategy and adds up the times.

    A static strategy must admit the longest sequence of the run, not only of one batch.

    Attributes:
        cluster: Cluster of the run's ranks, with which the batches are planned.
        longest: Tokens of the longest sequence of the run.
    """

    cluster: Cluster
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
        memory: MemoryRule = "per_micro_batch",
    ) -> Self:
        """Compare the strategies that admit a sequence of `longest` tokens under the memory rule.

        With a link, the time of a batch includes its exposed transfers.
        """
        comparison = cls(cluster, longest)
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
        """Return the strategy with the least total time; None if no strategy admits the longest sequence."""
        if not self._totals:
            return None
        strategy = min(self._totals, key=lambda name: self._totals[name])
        return StaticTotal(strategy, self._totals[strategy])
