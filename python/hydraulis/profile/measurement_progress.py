"""How far a measurement has come."""

import time
from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[float], None]

# The first pass may take longer than the budget: it is not done before its end.
LAST_SHARE = 0.99


@dataclass(slots=True)
class MeasurementProgress:
    """How much is done: of the time, and of the first pass, which is made however long it takes."""

    progress: Progress
    start: float
    seconds: float
    num_first: int
    num_timed: int = 0

    def share(self) -> float:
        """Give the share of the time that is used; above 1 once it is up."""
        return (time.perf_counter() - self.start) / self.seconds

    def done(self) -> float:
        """Give the share that is done, below 1."""
        return min(LAST_SHARE, self.share(), self.num_timed / self.num_first)
