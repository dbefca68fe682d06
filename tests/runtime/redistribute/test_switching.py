"""A change of strategy makes no lasting tensor; modules and process groups are made on first use only."""

import pytest

from ranks import run_ranks
from runtime.redistribute.switching_workers import Made, switch

# Tensor, context and pipeline ranks, uneven replicas, each kind of checkpointing; the third has the groups of
# the first two.
STRATEGIES = (
    "2x<tp2>",
    "1x<pp3>+1x<1>",
    "1x<tp2>+2x<1>",
    "2x<cp2>",
    "1x<tp2,pp2>",
    "1x<tp2,full>+2x<1,selective>",
    "1x<tp4>",
)
# Twice each; the first once more, with a buffer that is made anew.
STEPS = (*STRATEGIES, *STRATEGIES, STRATEGIES[0])
SOUND = 2 * len(STRATEGIES)


@pytest.fixture(scope="module")
def made() -> list[list[Made]]:
    """By rank and step."""
    result: list[list[Made]] = run_ranks(4, switch, STEPS, SOUND)
    return result


def test_no_strategy_allocates_persistent_memory_even_on_first_use(made: list[list[Made]]) -> None:
    for of_rank in made:
        for one in of_rank[:SOUND]:
            assert one.temporary > 100
            assert one.lasting_bytes == 0


def test_modules_and_groups_of_a_strategy_are_built_on_first_use_alone(made: list[list[Made]]) -> None:
    for of_rank in made:
        first, later = of_rank[: len(STRATEGIES)], of_rank[len(STRATEGIES) :]
        # A rank is at the same position of <1> and of one of the <tp2> again.
        assert sum(one.modules > 0 for one in first) >= len(STRATEGIES) - 1
        assert [one.modules for one in later] == [0] * len(later)
        assert [one.groups for one in later] == [[]] * len(later)


def test_a_new_strategy_creates_groups_once_and_reports_it(
    made: list[list[Made]],
) -> None:
    # The pairs of the third, of <cp2>, <tp2,pp2> and <tp2,full> are those of the first.
    groups = [[[0, 1], [2, 3]], [], [], [], [], [], [[0, 1, 2, 3]]]
    for of_rank in made:
        assert [one.groups for one in of_rank[: len(STRATEGIES)]] == groups
        for one in of_rank:
            assert (one.groups_ms > 0) == bool(one.groups)


def test_a_buffer_that_is_allocated_again_is_found(made: list[list[Made]]) -> None:
    assert all(of_rank[-1].lasting_bytes > 0 for of_rank in made)
