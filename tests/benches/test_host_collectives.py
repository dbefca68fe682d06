"""The comparison of collectives in one group and in two levels times each, and counts connections."""

from benches.host_collectives_workers import measured
from ranks import run_ranks


def test_levels_take_a_connection_to_each_rank_of_the_node_and_to_each_leader() -> None:
    by_rank = run_ranks(6, measured, 2)
    for rank, (sockets, figures) in enumerate(by_rank):
        # A group takes a socket to each other rank, and one that listens: two ranks, and three leaders. The
        # others have a second group of one rank.
        assert sockets == (2 + 3 if rank % 2 == 0 else 2 + 1)
        assert all(ms > 0 for ms in figures.values())
    # One group of all ranks is there already.
    assert [sockets for sockets, _ in run_ranks(2, measured, 2)] == [0, 0]
