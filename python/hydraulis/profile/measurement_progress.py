"""How far a measurement has come."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hydraulis._core import Scheme

Progress = Callable[[float], None]

# The first pass may take longer than the budget: it is not done before its end.
LAST_SHARE = 0.99
# Fewer micro-batches tell no pace: the first of a scheme still pays for what is made on first use.
LEAST_TIMED = 3


@dataclass(slots=True)
class MeasurementProgress:
    """How much is done: of the time, and of the first pass, which is made however long it takes.

    Attributes:
        progress: told the share that is done.
        start: of the measurement, by the clock.
        seconds: that it may take.
        mixes: of the first pass, by scheme.
    """

    progress: Progress
    start: float
    seconds: float
    mixes: Mapping[Scheme, Sequence[Sequence[int]]]
    _num_timed: int = field(default=0, init=False)
    _work: float = field(default=0.0, init=False)
    _first_work: float = field(init=False)

    def __post_init__(self) -> None:
        self._first_work = sum(
            _work(scheme, lengths) for scheme, mixes in self.mixes.items() for lengths in mixes
        )

    def timed(self, scheme: Scheme, lengths: Sequence[int]) -> None:
        """Count a micro-batch, and tell how much is done with it."""
        self._num_timed += 1
        self._work += _work(scheme, lengths)
        self.progress(self.done())

    def share(self) -> float:
        """Give the share of the time that is used; above 1 once it is up."""
        return (time.perf_counter() - self.start) / self.seconds

    def done(self) -> float:
        """Give the share that is done, below 1; none of it while too little is timed to tell a pace."""
        if self._num_timed < LEAST_TIMED:
            return 0.0
        return min(LAST_SHARE, self.share(), self._work / self._first_work)


def _work(scheme: Scheme, lengths: Sequence[int]) -> float:
    """Give what a micro-batch takes, but for a factor of all: its ranks share its tokens and layers."""
    return sum(lengths) / scheme.ranks
