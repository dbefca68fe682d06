"""Slow ranks: found from the computation times of every step, and planned for at lower rates.

An observation of a rank is its measured over its predicted time in one step, relative to the other ranks:
divided by the low median of that ratio over all ranks with work, each of them counted at its known slowdown.
Errors of prediction that all ranks share cancel. A rank's slowdown is the median of its last three
observations. Ranks of different devices have different usual rates: slowdowns are relative to those. If the
profile of one device promises too short times, all ranks of that device become slow.

- A rank becomes slow when its slowdown reaches the threshold, so two of three steps decide.
- A slow rank recovers when its slowdown falls below the middle of 1 and the threshold. In between, its rate
  follows if the slowdown differs by more than `CHANGE` from the one in use.
- A slow rank without work is not measured. After a number of steps it is planned for at full rate again; the
  number doubles with each try that finds it slow.
- A step in which a rank would compute less than `LEAST_MS` is too short to judge the rank.

Waiting for other stages is no part of a computation's time. On CUDA a computation includes its waits for
tensor and context ranks, so a stage group takes the time of its slowest rank: all of its ranks become slow
together, and those of them that later compute in a faster group recover. If a known slow rank explains a
group's time, the time says nothing about the others.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hydraulis._core import Plan, Span
from hydraulis.runtime.records.measured_times import micro_batch_times, stage_rates

WINDOW = 3
"""Observations whose median is a rank's slowdown."""
CHANGE = 1.15
"""Factor between a slowdown and the one in use that changes the rate of a slow rank."""
LEAST_MS = 100.0
"""Computation time of a rank in a step, below which the step is no observation of the rank."""
# Steps without work after which a slow rank is tried again, at first and at most.
_FIRST_PATIENCE, _MOST_PATIENCE = 32, 1024
LEAST_RATE = 1e-3
"""The least rate of a rank in the core."""


class RateChange(NamedTuple):
    """A rank that became slow, or recovered.

    Attributes:
        rank: Number of the rank.
        slowdown: Computation time relative to the other ranks; 1 for a rank that recovered.
    """

    rank: int
    slowdown: float


class RankRates:
    """Keeps the slowdown of every rank.

    Args:
        usual: Rate of each rank that is not slow: that of its device.
        threshold: Slowdown from which a rank is slow, above 1.
        includes_waits: Whether a computation's time includes its waits for tensor and context ranks.

    Attributes:
        slowdowns: Slowdown of each rank that plans count with; 1 for a rank that is not slow.
    """

    def __init__(self, usual: Sequence[float], threshold: float, *, includes_waits: bool) -> None:
        ranks = len(usual)
        self._usual = usual
        self._threshold = threshold
        self._recovered_below = (1 + threshold) / 2
        self._includes_waits = includes_waits
        self.slowdowns = [1.0] * ranks
        self._last = [_filled(1.0) for _ in range(ranks)]
        # Steps without work, and the number of them after which a slow rank is tried again.
        self._idle = [0] * ranks
        self._patience = [_FIRST_PATIENCE] * ranks
        # Ranks that were reported as slow, with their observations since they are planned for at full rate.
        self._reported: dict[int, int] = {}

    @property
    def rates(self) -> list[float] | None:
        """The rate of each rank relative to its usual one; None if no rank is slow."""
        if all(slowdown == 1.0 for slowdown in self.slowdowns):
            return None
        return [1.0 / slowdown for slowdown in self.slowdowns]

    def resume(self, rates: Sequence[float]) -> None:
        """Continue from recorded rates; rates of another number of ranks are ignored."""
        if len(rates) != len(self.slowdowns):
            return
        self.slowdowns = [_rounded(1.0 / rate) for rate in rates]
        self._last = [_filled(slowdown) for slowdown in self.slowdowns]
        self._reported = {rank: 0 for rank, slowdown in enumerate(self.slowdowns) if slowdown > 1}

    def observe(
        self, plan: Plan, predicted: Sequence[Sequence[Span]], computed_ms: Sequence[float | None]
    ) -> list[RateChange]:
        """Take the times of one step, and return the ranks that became slow or recovered.

        Args:
            plan: Plan of the step.
            predicted: Predicted timeline of each replica.
            computed_ms: Measured computation time of each rank, in milliseconds; None for a rank whose time
                is not comparable.
        """
        expected = self._expected(plan, predicted)
        observed = self._observations(expected, computed_ms)
        for rank, slowdown in observed.items():
            self._last[rank].append(slowdown)
            if rank in self._reported and self.slowdowns[rank] == 1:
                self._reported[rank] += 1
        self._normalise()
        for rank in observed:
            self._update(rank)
        self._try_idle_again(expected)
        return self._changes()

    def _expected(self, plan: Plan, predicted: Sequence[Sequence[Span]]) -> "dict[int, _Expected]":
        """Return the expected computation of each rank with work."""
        expected = {}
        times = micro_batch_times(plan, predicted)
        for replica, by_micro_batch, rates in zip(plan.replicas, times, stage_rates(plan), strict=True):
            # An empty micro-batch has a predicted time, and is never run.
            run = [
                stages
                for sequences, stages in zip(replica.micro_batches, by_micro_batch, strict=True)
                if sequences
            ]
            for stage, ranks in enumerate(replica.stages if run else []):
                at_rate_1_ms = sum(stages[stage] for stages in run) * rates[stage]
                slowest = max(self.slowdowns[rank] / self._usual[rank] for rank in ranks)
                for rank in ranks:
                    usual, own = self._usual[rank], self.slowdowns[rank]
                    slowdown = slowest * usual if self._includes_waits else own
                    expected[rank] = _Expected(at_rate_1_ms / usual, slowdown)
        return expected

    def _observations(
        self, expected: "dict[int, _Expected]", computed_ms: Sequence[float | None]
    ) -> dict[int, float]:
        ratios = {
            rank: measured / one.full_rate_ms
            for rank, one in expected.items()
            if one.full_rate_ms > 0 and (measured := computed_ms[rank])
        }
        if not ratios:
            return {}
        usual = statistics.median_low(ratio / expected[rank].slowdown for rank, ratio in ratios.items())
        observed = {}
        for rank, ratio in ratios.items():
            one, slowdown = expected[rank], ratio / usual
            is_long = one.full_rate_ms * one.slowdown * usual >= LEAST_MS
            is_explained = self.slowdowns[rank] < one.slowdown and slowdown <= one.slowdown * CHANGE
            if is_long and not is_explained:
                observed[rank] = slowdown
        return observed

    def _normalise(self) -> None:
        """Count in units of the fastest rank if even that one seems slow: most slow ranks recovered."""
        least = min(map(statistics.median, self._last))
        if least >= self._recovered_below:
            self.slowdowns = [max(1.0, _rounded(slowdown / least)) for slowdown in self.slowdowns]
            self._last = [deque([one / least for one in last], maxlen=WINDOW) for last in self._last]

    def _update(self, rank: int) -> None:
        known, slowdown = self.slowdowns[rank], statistics.median(self._last[rank])
        if known == 1:
            if slowdown >= self._threshold:
                self.slowdowns[rank] = _rounded(slowdown)
        elif slowdown < self._recovered_below:
            self.slowdowns[rank] = 1.0
            self._reported[rank] = WINDOW
        elif max(slowdown / known, known / slowdown) > CHANGE:
            self.slowdowns[rank] = _rounded(slowdown)

    def _try_idle_again(self, expected: "dict[int, _Expected]") -> None:
        for rank, slowdown in enumerate(self.slowdowns):
            if slowdown == 1:
                continue
            self._idle[rank] = 0 if rank in expected else self._idle[rank] + 1
            if self._idle[rank] >= self._patience[rank]:
                self._idle[rank] = 0
                self._patience[rank] = min(2 * self._patience[rank], _MOST_PATIENCE)
                self.slowdowns[rank] = 1.0
                self._last[rank] = _filled(1.0)
                self._reported[rank] = 0

    def _changes(self) -> list[RateChange]:
        """Return each rank once when it becomes slow, and once when it is known to have recovered."""
        changes = []
        for rank, slowdown in enumerate(self.slowdowns):
            if slowdown > 1 and rank not in self._reported:
                self._reported[rank] = 0
                changes.append(RateChange(rank, slowdown))
            elif slowdown == 1 and self._reported.get(rank, 0) >= WINDOW:
                del self._reported[rank]
                self._patience[rank] = _FIRST_PATIENCE
                changes.append(RateChange(rank, 1.0))
        return changes


class _Expected(NamedTuple):
    """The expected computation of a rank in a step.

    Attributes:
        full_rate_ms: Predicted time at full rate.
        slowdown: Known slowdown: the rank's own, or its stage group's if computations include waits.
    """

    full_rate_ms: float
    slowdown: float


def _filled(slowdown: float) -> deque[float]:
    return deque([slowdown] * WINDOW, maxlen=WINDOW)


def _rounded(slowdown: float) -> float:
    """Round to two digits: the bound counts few levels of speed, and like ranks shall have the same rate."""
    return float(f"{min(max(slowdown, 1.0), 1 / LEAST_RATE):.2g}")
