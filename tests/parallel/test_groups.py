from datetime import timedelta

import pytest

from hydraulis.errors import InvalidInputError
from hydraulis.parallel.groups import ProcessGroups
from parallel.groups_workers import created_groups, refusal, sums_of_groups
from ranks import run_ranks


def test_overlapping_groups_reach_their_members_and_no_one_else() -> None:
    results = run_ranks(4, sums_of_groups, [[0, 1], [2, 3], [1, 3], [0, 1, 2, 3], [2, 1]])
    assert results == [
        [1, None, None, 6, None],
        [1, None, 4, 6, 3],
        [None, 5, None, 6, 3],
        [None, 5, 4, 6, None],
    ]


def test_each_group_is_made_once_in_sorted_order_and_none_of_one_rank() -> None:
    calls = [[[3, 1], [2, 3], [1, 2], [0, 3], [2, 0], [1, 0], [0]], [[0, 1], [1, 2], range(3), [2]], []]
    for created, count in run_ranks(4, created_groups, calls):
        assert created == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3], [0, 1, 2]]
        assert count == 7


def test_a_single_rank_needs_no_group() -> None:
    groups = ProcessGroups(timedelta(seconds=1))
    groups.ensure([[5], [0]])
    assert groups.get([5]) is None
    assert len(groups) == 0


def test_a_group_of_others_is_refused_to_this_rank_alone() -> None:
    member, _, other = run_ranks(3, refusal, [[0, 1]], [0, 1])
    assert member is None
    assert other.startswith("process_group: no process group of ranks (0, 1): this rank is not in it")


def test_a_group_that_was_not_made_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"ranks \(0, 1\): it was not made"):
        ProcessGroups(timedelta(seconds=1)).get([0, 1])


@pytest.mark.parametrize("ranks", [[], [1, 1]])
def test_no_rank_and_a_rank_named_twice_are_refused(ranks: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="each once"):
        ProcessGroups(timedelta(seconds=1)).ensure([ranks])
