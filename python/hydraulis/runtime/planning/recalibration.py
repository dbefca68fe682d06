"""Learns correction factors of a profile's times from the measured times of a run."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hydraulis._core import CostProfile, Plan, Scheme, Span
from hydraulis.planner.devices import device_profiles, device_rates
from hydraulis.planner.profile_document import with_scaled_times
from hydraulis.runtime.records.measured_times import at_full_rate, micro_batch_times

# Limit of a factor and of its inverse; a larger deviation from the profile has another cause.
BOUND = 2.0


class Recalibration:
    """Keeps an exponential average of measured over predicted time for each scheme.

    The average is over logarithms, so that ratios of 2 and 1/2 cancel. A scheme that has not run yet gets the
    geometric mean of the other schemes' factors, so the correction neither favours nor penalises it. A factor
    holds on all devices of the profile.

    Args:
        profile: Cost profile to correct.
        weight: Weight of the newest iteration, in (0, 1).

    Attributes:
        factors: Measured over predicted time, by the scheme's text; between 1 / `BOUND` and `BOUND`.
    """

    def __init__(self, profile: CostProfile, weight: float) -> None:
        self._profile = profile
        self._of_devices = device_profiles(profile)
        self._weight = weight
        self.factors: dict[str, float] = {}

    def observe(self, plan: Plan, timelines: Sequence[Sequence[Span]]) -> None:
        """Update the factors from one iteration.

        Args:
            plan: Executed plan.
            timelines: Measured timelines, one for each replica.
        """
        lengths = plan.lengths
        predicted: dict[Scheme, float] = defaultdict(float)
        measured: dict[Scheme, float] = defaultdict(float)
        # A slow rank is no error of the profile.
        full = at_full_rate(plan, micro_batch_times(plan, timelines), device_rates(self._profile))
        for replica, device, times in full:
            profile = self._of_devices[device]
            for sequences, stages in zip(replica.micro_batches, times, strict=True):
                # An empty micro-batch is never run, although its predicted time is `c`, or `d`.
                if not sequences:
                    continue
                expected_ms = profile.micro_batch_ms(replica.scheme, lengths[sequences].tolist())
                predicted[replica.scheme] += expected_ms
                # The stages' multipliers have mean 1, so the mean over stages matches the prediction.
                measured[replica.scheme] += math.fsum(stages) / len(stages)
        for scheme, ms in measured.items():
            if ms > 0:
                self._learn(str(scheme), ms / predicted[scheme])

    def _learn(self, scheme: str, ratio: float) -> None:
        known = self.factors.get(scheme, mean_factor(self.factors))
        factor = known * (ratio / known) ** self._weight
        self.factors[scheme] = min(max(factor, 1 / BOUND), BOUND)

    def profile(self, factors: Mapping[str, float] | None = None) -> CostProfile:
        """Return the profile with the times of each scheme multiplied by its current factor, or these."""
        by_scheme = self.factors if factors is None else factors
        others = mean_factor(by_scheme)
        return with_scaled_times(self._profile, lambda scheme: by_scheme.get(scheme, others))


def mean_factor(factors: Mapping[str, float]) -> float:
    """Return the geometric mean of the factors; 1 without any."""
    if not factors:
        return 1.0
    return math.exp(math.fsum(map(math.log, factors.values())) / len(factors))
