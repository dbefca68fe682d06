"""The progress of a measurement, as a share of its time and of its first pass."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hydraulis._core import Scheme

Progress = Callable[[float], None]

# The first pass can exceed the time limit; the measurement is not complete before its end.
LAST_SHARE = 0.99
# The first micro-batch of a scheme includes one-time costs, so fewer micro-batches give no reliable speed.
LEAST_TIMED = 3


@dataclass(slots=True)
class MeasurementProgress:
    """The completed share of a measurement: of its time, and at most that of its first pass.

    Attributes:
        progress: Callback that receives the completed share.
        start: Start of the measurement, in seconds of `time.perf_counter`.
        seconds: Time limit of the measurement.
        mixes: Micro-batches of the first pass, by scheme.
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
        """Count a timed micro-batch and report the completed share."""
        self._num_timed += 1
        self._work += _work(scheme, lengths)
        self.progress(self.completed_share())

    def time_share(self) -> float:
        """Return the used share of the time, above 1 after the time limit."""
        return (time.perf_counter() - self.start) / self.seconds

    def completed_share(self) -> float:
        """Return the completed share, below 1; 0 until `LEAST_TIMED` micro-batches are timed."""
        if self._num_timed < LEAST_TIMED:
            return 0.0
        return min(LAST_SHARE, self.time_share(), self._work / self._first_work)


def _work(scheme: Scheme, lengths: Sequence[int]) -> float:
    """Return a number in proportion to the time of a micro-batch, whose ranks split its tokens and layers."""
    return sum(lengths) / scheme.ranks
