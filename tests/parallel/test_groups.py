import contextlib
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import refused
from hydraulis import Cluster, Scheme, Strategy
from hydraulis._core import Position
from hydraulis.errors import InvalidInputError
from hydraulis.parallel.groups import ProcessGroups, most_groups_of_rank
from parallel.connections_workers import CPU, connected_once, messages_while_connecting, sums_while_connecting
from parallel.groups_workers import created_groups, refusal, sums_of_groups
from ranks import run_ranks


def test_overlapping_groups_reach_only_their_members() -> None:
    results = run_ranks(4, sums_of_groups, [[0, 1], [2, 3], [1, 3], [0, 1, 2, 3], [2, 1]])
    assert results == [
        [1, None, None, 6, None],
        [1, None, 4, 6, 3],
        [None, 5, None, 6, 3],
        [None, 5, 4, 6, None],
    ]


def test_each_group_of_several_ranks_is_created_once_in_one_order() -> None:
    calls = [[[3, 1], [2, 3], [1, 2], [0, 3], [2, 0], [1, 0], [0]], [[0, 1], [1, 2], range(3), [2]], []]
    for created, count in run_ranks(4, created_groups, calls):
        assert created == [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2], [0, 1, 2]]
        assert count == 7


def test_a_single_rank_needs_no_group() -> None:
    groups = ProcessGroups(timedelta(seconds=1))
    groups.ensure([[5], [0]])
    assert groups.get([5]) is None
    assert len(groups) == 0


def test_a_group_of_other_ranks_is_refused_to_this_rank_alone() -> None:
    member, _, other = run_ranks(3, refusal, [[0, 1]], [0, 1])
    assert member is None
    assert other.startswith("argument_invalid: ")
    assert "(0, 1)" in other


def test_a_group_that_was_not_created_is_refused() -> None:
    with refused("argument_invalid", "(0, 1)"):
        ProcessGroups(timedelta(seconds=1)).get([0, 1])


DEGREES = (1, 2, 3, 4, 6, 8, 16)


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(DEGREES), st.sampled_from(DEGREES), st.integers(1, 3)), max_size=8
        ),
        max_size=12,
    ),
    st.sampled_from([(6, 8), (8, 8), (48, 8), (24, 6)]),
)
def test_the_groups_of_any_strategies_are_bounded(
    strategies: list[list[tuple[int, int, int]]], shape: tuple[int, int]
) -> None:
    cluster = Cluster(gpus=shape[0], gpus_per_node=shape[1])
    groups: set[tuple[int, ...]] = set()
    used: set[tuple[int, int]] = set()
    for replicas in strategies:
        with contextlib.suppress(InvalidInputError):
            strategy = Strategy("+".join(f"1x<tp{tp},cp{cp},pp{pp}>" for tp, cp, pp in replicas))
            placed = list(zip(strategy.schemes, strategy.place(cluster), strict=True))
            used |= {(scheme.tp, scheme.cp) for scheme, _ in placed}
            groups |= {group for scheme, ranks in placed for group in groups_of(scheme, ranks)}
    own = Counter(rank for group in groups for rank in group)
    assert max(own.values(), default=0) <= most_groups_of_rank(used, *shape)


@pytest.mark.parametrize("power", [1, 2, 3, 4, 5])
def test_with_powers_of_two_all_strategies_of_a_node_have_few_groups(power: int) -> None:
    ranks = 2**power
    cluster = Cluster(gpus=ranks, gpus_per_node=ranks)
    pairs = [(tp, cp) for tp in range(power + 1) for cp in range(power + 1 - tp)]
    groups = set()
    for tp, cp in pairs:
        strategy = Strategy(f"{2 ** (power - tp - cp)}x<tp{2**tp},cp{2**cp}>")
        for scheme, placed in zip(strategy.schemes, strategy.place(cluster), strict=True):
            groups |= groups_of(scheme, placed)
    own = Counter(rank for group in groups for rank in group)
    assert len(groups) == ranks * power - ranks + 1
    assert set(own.values()) == {power * (power + 1) // 2}
    degrees = [(2**tp, 2**cp) for tp, cp in pairs]
    assert max(own.values()) <= most_groups_of_rank(degrees, ranks, ranks)


def groups_of(scheme: Scheme, ranks: list[int]) -> set[tuple[int, ...]]:
    """Name the tensor and context groups of a replica that have more than one rank."""
    groups = set()
    for position, rank in zip(Position.all(scheme), ranks, strict=True):
        groups |= {tuple(position.tensor_group(rank)), tuple(position.context_group(rank))}
    return {group for group in groups if len(group) > 1}


def test_the_bound_of_a_rank_is_small() -> None:
    # Tensor degrees of 2, 4 and 8 on 64 ranks in nodes of 8, and one of two nodes, which has two positions.
    assert most_groups_of_rank([(2, 1), (4, 1), (8, 1), (16, 1), (2, 1)], 64, 8) == 1 + 1 + 1 + 2
    # A pair and a strided group of four.
    assert most_groups_of_rank([(2, 4)], 64, 8) == 2
    assert most_groups_of_rank([(1, 1), (32, 1)], 16, 8) == 0


@pytest.mark.parametrize("ranks", [[], [1, 1]])
def test_an_empty_group_and_a_repeated_rank_are_refused(ranks: list[int]) -> None:
    with refused("argument_invalid", "ranks = "):
        ProcessGroups(timedelta(seconds=1)).ensure([ranks])


def test_all_ranks_of_a_group_meet_and_then_the_ranks_of_each_pair_in_order() -> None:
    # In a circle: if each rank took its own order, none would meet.
    pairs = [(2, 1), (0, 1), (3, 2), (0, 3), (1, 0)]
    met = run_ranks(4, messages_while_connecting, [[0, 1], [0, 1, 2, 3]], pairs)
    assert met == [
        [(0, 1), (0, 1, 2, 3), (0, 1), (0, 3)],
        [(0, 1), (0, 1, 2, 3), (0, 1), (1, 2)],
        [(0, 1, 2, 3), (1, 2), (2, 3)],
        [(0, 1, 2, 3), (0, 3), (2, 3)],
    ]


def test_all_ranks_meet_in_one_reduction() -> None:
    assert run_ranks(3, sums_while_connecting) == [[1]] * 3


def test_each_group_and_pair_is_connected_once() -> None:
    made = [groups for groups, _, _ in run_ranks(3, connected_once, CPU)]
    assert made == [[(0, 1)], [(0, 1), (1, 2)], [(1, 2)]]


def test_only_pairs_that_are_new_are_connected() -> None:
    (_, pairs, took_time), *_ = run_ranks(3, connected_once, CPU)
    assert pairs == [{(0, 1)}, {(1, 2)}, set()]
    assert took_time


def test_a_backend_that_connects_by_itself_gets_no_connections() -> None:
    assert [found[:2] for found in run_ranks(3, connected_once, None)] == [([], [])] * 3
