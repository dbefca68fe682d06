"""What a run needs of a planner."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hydraulis._core import Plan, RankMemory, Span

Counts = npt.NDArray[np.int64]


class BatchPlanner(Protocol):
    """Plans batches one by one: a `Planner`, or what corrects one as it goes."""

    @property
    def strategies(self) -> list[str]:
        """What it chooses from."""
        ...

    def plan(self, lengths: Counts, targets: Counts, /) -> Plan:
        """Plan a batch of these token and target counts."""
        ...

    def check(self, plan: Plan, lengths: Counts, targets: Counts, /) -> list[str]:
        """Say which promises the plan of this batch breaks."""
        ...

    def timeline(self, plan: Plan, /) -> list[list[Span]]:
        """Give the predicted timeline of each replica."""
        ...

    def rank_memory(self, plan: Plan, /) -> list[RankMemory | None]:
        """Predict what each rank holds at its fullest moment; None without work."""
        ...
