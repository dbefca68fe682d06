"""How far a measurement has come is told by the work, once its pace can be known."""

import time

import pytest

from hydraulis import Scheme
from hydraulis.profile.measurement_progress import MeasurementProgress

# The ranks of a scheme share a micro-batch out; one of them takes half of all the work.
MIXES = {Scheme("<tp2>"): [[10], [10, 10], [30, 40]], Scheme("<1>"): [[20], [10, 20], [100]]}
DONE = [5, 15, 50, 70, 100, 200]


def shares_of(began_s: float, seconds: float) -> list[float]:
    """Time all micro-batches of a measurement that began so long ago and may take so long."""
    shares: list[float] = []
    progress = MeasurementProgress(shares.append, time.perf_counter() - began_s, seconds, MIXES)
    for scheme, mixes in MIXES.items():
        for lengths in mixes:
            progress.timed(scheme, lengths)
    return shares


def test_it_is_told_by_the_work_and_not_before_three_are_timed() -> None:
    # The time is up long ago.
    assert shares_of(9.0, 1.0) == [0.0, 0.0, *(pytest.approx(done / DONE[-1]) for done in DONE[2:5]), 0.99]


def test_where_there_is_time_for_more_it_is_told_by_the_time() -> None:
    shares = shares_of(20_000.0, 100_000.0)
    assert shares[:2] == [0.0, 0.0]
    assert shares[2:] == pytest.approx([0.2] * 4, abs=0.01)
