"""Timed micro-batches of a measurement."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hydraulis.text.documents import parse_json

# From a median of absolute deviations to the standard error of the median of n values, times the root of n:
# 1.4826 for the deviation of a normal distribution, and 1.2533 for its median.
_MEDIAN_ERROR = 1.4826 * 1.2533


class Timing(NamedTuple):
    """Times in ms of one micro-batch on one rank, or on the slowest rank of a stage."""

    forward_ms: float
    backward_ms: float


@dataclass(frozen=True, slots=True)
class Observation:
    """One micro-batch, timed once on one replica.

    Attributes:
        scheme: Scheme of the replica, as text.
        lengths: Lengths of the sequences in tokens.
        stages: Timing of the slowest rank, by stage.
    """

    scheme: str
    lengths: tuple[int, ...]
    stages: tuple[Timing, ...]

    def to_json(self) -> str:
        """Return the observation as one line of JSON, without a line end."""
        return json.dumps({"scheme": self.scheme, "lengths": self.lengths, "stages_ms": self.stages})

    @classmethod
    def from_json(cls, line: str) -> "Observation":
        """Parse a line of `to_json`.

        Raises:
            ValueError: It is malformed (or KeyError, TypeError, OverflowError).
        """
        entry = parse_json(line)
        stages = tuple(Timing(float(forward), float(backward)) for forward, backward in entry["stages_ms"])
        lengths = tuple(int(length) for length in entry["lengths"])
        if not all(0 <= ms < math.inf for stage in stages for ms in stage) or min(lengths) < 1:
            message = "a time is negative or not finite, or a length is below 1"
            raise ValueError(message)
        return cls(str(entry["scheme"]), lengths, stages)


class Observations:
    """The observations of some schemes, by micro-batch."""

    def __init__(self) -> None:
        self._timed: dict[tuple[str, tuple[int, ...]], list[tuple[Timing, ...]]] = defaultdict(list)

    def add(self, observation: Observation) -> None:
        """Add an observation."""
        self._timed[observation.scheme, observation.lengths].append(observation.stages)

    def mixes(self, scheme: str) -> list[tuple[int, ...]]:
        """Return the timed micro-batches of a scheme, in the order of their first timing."""
        return [lengths for timed_scheme, lengths in self._timed if timed_scheme == scheme]

    def stage_times(self, scheme: str, lengths: Sequence[int]) -> list[Timing]:
        """Return the median timing of a micro-batch, by stage."""
        timed = self._timed[scheme, tuple(lengths)]
        return [
            Timing(
                statistics.median(timing.forward_ms for timing in timings),
                statistics.median(timing.backward_ms for timing in timings),
            )
            for timings in zip(*timed, strict=True)
        ]

    def median_error(self, scheme: str, lengths: Sequence[int]) -> float:
        """Estimate the relative standard error of a median time; infinite for fewer than three timings."""
        totals = [
            sum(map(sum, stages)) / len(stages) for stages in self._timed.get((scheme, tuple(lengths)), ())
        ]
        if len(totals) < 3:
            return float("inf")
        median = statistics.median(totals)
        deviation = statistics.median(abs(total - median) for total in totals)
        return float(_MEDIAN_ERROR * deviation / median / len(totals) ** 0.5)
