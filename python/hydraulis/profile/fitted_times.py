"""From the times of micro-batches to the coefficients that a cost profile states."""

import statistics
from collections.abc import Sequence

from hydraulis._core import Scheme, fit_costs
from hydraulis.profile.document import TimeMeasurement
from hydraulis.profile.measurement_record import Mixes
from hydraulis.profile.observations import Observations, Timing


def fitted_times(mixes: Mixes, observations: Observations) -> dict[Scheme, TimeMeasurement]:
    """Fit the mean over the stages, by scheme; each stage's multiplier is its share of the summed times.

    Args:
        mixes: the micro-batches that were timed, by scheme.
        observations: of all of them.

    Raises:
        InvalidInputError: times follow no law (code `fit_unexplained`; see `fit_costs`).
    """
    timings = {
        scheme: [observations.stage_times(str(scheme), lengths) for lengths in mixes[scheme]]
        for scheme in mixes
    }
    totals = {scheme: [[sum(timing) for timing in stages] for stages in timings[scheme]] for scheme in mixes}
    points = [
        (
            scheme,
            [
                (list(lengths), statistics.fmean(times))
                for lengths, times in zip(mixes[scheme], totals[scheme], strict=True)
            ],
        )
        for scheme in mixes
    ]
    fitted = {}
    for scheme, fit in zip(mixes, fit_costs(points), strict=True):
        by_stage = [sum(times) for times in zip(*totals[scheme], strict=True)]
        multipliers = [total / statistics.fmean(by_stage) for total in by_stage]
        forward_share = _forward_share([timing for stages in timings[scheme] for timing in stages])
        fitted[scheme] = TimeMeasurement.of(fit, forward_share, multipliers)
    return fitted


def _forward_share(timings: Sequence[Timing]) -> float:
    forward_ms = sum(timing.forward_ms for timing in timings)
    return forward_ms / (forward_ms + sum(timing.backward_ms for timing in timings))
