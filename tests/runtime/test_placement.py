"""Placements: equal for plans with the same places, and the values that are kept by them."""

from hydraulis.runtime.placement import ByPlacement, placement_of
from runtime.tiny import plan_for


def test_plans_of_one_strategy_have_one_placement_whatever_their_batch() -> None:
    first = placement_of(plan_for(4, "1x<tp2>+1x<pp2>", [30, 20, 10]))
    assert first == placement_of(plan_for(4, "1x<tp2>+1x<pp2>", [31, 5, 7, 8]))
    assert sorted(first.ranks) == [0, 1, 2, 3]
    assert len(first.schemes) == 2
    # Other degrees on the same ranks, and ranks without work.
    for other in ("2x<tp2>", "2x<pp2>", "4x<1>", "1x<tp2>+1x<1>"):
        assert placement_of(plan_for(4, other, [30, 20, 10])) != first


def test_values_of_the_last_used_placements_are_kept() -> None:
    placements = [placement_of(plan_for(4, strategy, [9, 8])) for strategy in ("4x<1>", "2x<tp2>", "2x<pp2>")]
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return 10 * number

    kept = ByPlacement[int](most=2)
    for number in (0, 1, 0, 2, 0, 1):
        assert kept.get(placements[number], lambda number=number: make(number)) == 10 * number  # type: ignore[misc]
    # When 2 came, 1 had been used least recently.
    assert made == [0, 1, 2, 1]
