"""The interface of a planner in a training run."""

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hydraulis._core import Plan, RankMemory, Span

Counts = npt.NDArray[np.int64]


class BatchPlanner(Protocol):
    """A planner of single batches: `Planner`, or one that corrects its predicted times during a run."""

    @property
    def strategies(self) -> list[str]:
        """The candidate strategies."""
        ...

    def plan(self, lengths: Counts, targets: Counts, /) -> Plan:
        """Plan a batch; `lengths` and `targets` are the tokens and targets of each sequence, int64 [n]."""
        ...

    def check(self, plan: Plan, lengths: Counts, targets: Counts, /) -> list[str]:
        """Return the guarantees that the plan of this batch violates; an empty list for a valid plan."""
        ...

    def timeline(self, plan: Plan, /) -> list[list[Span]]:
        """Predict the spans of computation and waiting of each replica."""
        ...

    def rank_memory(self, plan: Plan, /) -> list[RankMemory | None]:
        """Predict the peak memory of each rank; None for a rank without work."""
        ...


@runtime_checkable
class LearningPlanner(Protocol):
    """A planner that corrects its predicted times by the times of earlier batches."""

    def learn(self) -> None:
        """Use the times so far for the plans that are requested from now on."""
        ...
