import math

import pytest

from hydraulis.profile.observations import Observation, Observations, Timing


def test_the_error_of_a_median_falls_with_their_number() -> None:
    observations = Observations()
    assert observations.median_error("<1>", [64]) == math.inf
    for total in (9.0, 10.0, 11.0):
        observations.add(Observation("<1>", (64,), (Timing(total / 2, total / 2),)))
    # The median of the deviations is 1 of 10.
    three = observations.median_error("<1>", [64])
    assert three == pytest.approx(1.4826 * 1.2533 * 0.1 / math.sqrt(3))
    for total in (9.0, 10.0, 11.0) * 3:
        observations.add(Observation("<1>", (64,), (Timing(total / 2, total / 2),)))
    assert observations.median_error("<1>", [64]) == pytest.approx(three / 2)
    assert observations.mixes("<1>") == [(64,)]
