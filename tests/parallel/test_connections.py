"""Ranks are connected before they need it, in one order."""

from parallel.connections_workers import (
    CPU,
    connected_once,
    messages_while_connecting,
    sums_while_connecting,
)
from ranks import run_ranks


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
