"""What a run learns of its own times: how much longer than its profile says each scheme takes."""

import math
from collections import defaultdict
from collections.abc import Sequence

from hydraulis._core import CostProfile, Plan, Scheme, Span
from hydraulis.planner.profile_document import with_scaled_times
from hydraulis.runtime.records.times import micro_batch_times

# No scheme is taken for more than twice as slow or as fast as it was measured: then something else is wrong.
BOUND = 2.0


class Recalibration:
    """An exponential average for each scheme, of measured over predicted time, iteration by iteration.

    Averaged are logarithms, so that twice and half as long cancel out. A scheme that has not run yet is taken
    to be as far off as those that have, so that it is neither sought nor avoided for that.

    Args:
        profile: whose times are corrected.
        weight: of the newest iteration, in (0, 1).

    Attributes:
        factors: by scheme as written, how many times as long as predicted it takes; within `BOUND`.
    """

    def __init__(self, profile: CostProfile, weight: float) -> None:
        self._profile = profile
        self._weight = weight
        self.factors: dict[str, float] = {}

    def observe(self, plan: Plan, timelines: Sequence[Sequence[Span]]) -> None:
        """Learn from an iteration.

        Args:
            plan: that was carried out.
            timelines: measured, one for each replica.
        """
        lengths = plan.lengths
        predicted: dict[Scheme, float] = defaultdict(float)
        measured: dict[Scheme, float] = defaultdict(float)
        for replica, times in zip(plan.replicas, micro_batch_times(plan, timelines), strict=True):
            for sequences, stages in zip(replica.micro_batches, times, strict=True):
                # One without sequences is predicted to take `c`, and none runs it.
                if not sequences:
                    continue
                expected_ms = self._profile.micro_batch_ms(replica.scheme, lengths[sequences].tolist())
                predicted[replica.scheme] += expected_ms
                # Stage multipliers average 1.
                measured[replica.scheme] += math.fsum(stages) / len(stages)
        for scheme, ms in measured.items():
            if ms > 0:
                self._learn(str(scheme), ms / predicted[scheme])

    def _learn(self, scheme: str, ratio: float) -> None:
        known = self.factors.get(scheme, self._of_others())
        factor = known * (ratio / known) ** self._weight
        self.factors[scheme] = min(max(factor, 1 / BOUND), BOUND)

    def _of_others(self) -> float:
        if not self.factors:
            return 1.0
        return math.exp(math.fsum(map(math.log, self.factors.values())) / len(self.factors))

    def profile(self) -> CostProfile:
        """Give the profile with each scheme's times corrected."""
        others = self._of_others()
        return with_scaled_times(self._profile, lambda scheme: self.factors.get(scheme, others))
