"""Fits the times of a cost profile to timed micro-batches."""

import statistics
from collections.abc import Mapping, Sequence

from hydraulis._core import Scheme, fit_costs
from hydraulis.planner.profile_document import SchemeTimes
from hydraulis.profile.observations import Observations
from hydraulis.profile.record import Mixes

# A timed micro-batch: the lengths of its sequences, and the time of each stage in ms, forward and backward.
TimedMicroBatch = tuple[Sequence[int], Sequence[float]]


def fit_times(
    timed: Mapping[Scheme, Sequence[TimedMicroBatch]], forward_shares: Mapping[Scheme, float] | None = None
) -> dict[Scheme, SchemeTimes]:
    """Fit the mean time over the stages; a stage's multiplier is its share of the summed times.

    Args:
        timed: Timed micro-batches of each scheme.
        forward_shares: Forward share of each scheme; None to keep the shares of a profile.

    Raises:
        InvalidInputError: The times do not follow the cost model (code `fit_unexplained`; see `fit_costs`).
    """
    points = [
        (scheme, [(list(lengths), statistics.fmean(stages)) for lengths, stages in micro_batches])
        for scheme, micro_batches in timed.items()
    ]
    return {
        scheme: SchemeTimes.from_fit(
            fit, _stage_multipliers(timed[scheme]), forward_shares[scheme] if forward_shares else None
        )
        for scheme, fit in zip(timed, fit_costs(points), strict=True)
    }


def fit_observations(mixes: Mixes, observations: Observations) -> dict[Scheme, SchemeTimes]:
    """Fit the median times of a measurement; see `fit_times`.

    Args:
        mixes: Timed micro-batches of each scheme.
        observations: Observations of all of them.

    Raises:
        InvalidInputError: The times do not follow the cost model (code `fit_unexplained`).
    """
    timings = {
        scheme: [(lengths, observations.stage_times(str(scheme), lengths)) for lengths in mixes[scheme]]
        for scheme in mixes
    }
    timed = {
        scheme: [(lengths, [sum(timing) for timing in stages]) for lengths, stages in timings[scheme]]
        for scheme in mixes
    }
    forward_shares = {}
    for scheme, micro_batches in timings.items():
        flat = [timing for _, stages in micro_batches for timing in stages]
        forward_ms = sum(timing.forward_ms for timing in flat)
        forward_shares[scheme] = forward_ms / (forward_ms + sum(timing.backward_ms for timing in flat))
    return fit_times(timed, forward_shares)


def _stage_multipliers(timed: Sequence[TimedMicroBatch]) -> list[float]:
    totals = [sum(times) for times in zip(*(stages for _, stages in timed), strict=True)]
    return [total / statistics.fmean(totals) for total in totals]
