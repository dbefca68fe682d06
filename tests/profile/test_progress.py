"""The completed share of a measurement follows its work, after the first timed micro-batches."""

import time

import pytest

from hydraulis import Scheme
from hydraulis.profile.progress import MeasurementProgress

# The ranks of a scheme split a micro-batch; the last micro-batch is half of all work.
MIXES = {Scheme("<tp2>"): [[10], [10, 10], [30, 40]], Scheme("<1>"): [[20], [10, 20], [100]]}
DONE = [5, 15, 50, 70, 100, 200]


def shares_of(elapsed_s: float, seconds: float) -> list[float]:
    """Report all micro-batches of a measurement that started `elapsed_s` ago, with a limit of `seconds`."""
    shares: list[float] = []
    progress = MeasurementProgress(shares.append, time.perf_counter() - elapsed_s, seconds, MIXES)
    for scheme, mixes in MIXES.items():
        for lengths in mixes:
            progress.timed(scheme, lengths)
    return shares


def test_the_share_follows_the_work_after_three_micro_batches() -> None:
    # The time limit has passed.
    assert shares_of(9.0, 1.0) == [0.0, 0.0, *(pytest.approx(done / DONE[-1]) for done in DONE[2:5]), 0.99]


def test_the_share_follows_the_time_if_the_limit_is_far() -> None:
    shares = shares_of(20_000.0, 100_000.0)
    assert shares[:2] == [0.0, 0.0]
    assert shares[2:] == pytest.approx([0.2] * 4, abs=0.01)
