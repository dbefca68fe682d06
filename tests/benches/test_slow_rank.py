"""The rate of a rank that does everything twice is measured in training, and plans give it less work."""

from typing import Any

import pytest

from benches.loading import load_script
from benches.slow_rank_workers import compared
from ranks import run_ranks


@pytest.fixture(scope="module")
def outcome() -> Any:
    first, *others = run_ranks(4, compared, "4x<1>")
    assert others == [None] * 3
    return first


def test_the_rate_is_known_within_three_iterations_and_the_rank_reported_once(outcome: Any) -> None:
    (_, rates, changes, _), known_from, _ = outcome
    # Slow from step 3 on: two observations, and the plan of step 5 was requested before the second.
    assert known_from == 6
    assert rates[:5] == [()] * 5
    assert all(one == pytest.approx([1.0, 1.0, 0.5, 1.0], abs=0.03) for one in rates[5:])
    assert [(step, rank) for step, rank, _ in changes] == [(4, 2)]


def test_the_slowest_rank_does_less_and_the_losses_are_the_same(outcome: Any) -> None:
    (slowest, _, _, loss_difference), known_from, ratio = outcome
    assert ratio > load_script("slow_rank").BAR
    assert loss_difference < 1e-4
    # Until the rate is known both ways have the same plans and the same work.
    before = known_from - 1
    assert slowest["rates"][:before] == slowest["equal"][:before]


def test_a_slow_stage_is_found_alone_though_the_next_one_waits_for_it() -> None:
    (_, rates, changes, loss_difference), _, ratio = run_ranks(4, compared, "2x<pp2>")[0]
    # Rank 2 is the first stage of the second pipeline, and rank 3 waits for it.
    assert [rank for _, rank, _ in changes] == [2]
    assert [number for number, rate in enumerate(rates[-1]) if rate < 1] == [2]
    assert ratio > 1.1
    assert loss_difference < 1e-4
