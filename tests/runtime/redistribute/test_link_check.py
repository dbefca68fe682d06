"""Exchanges between pairs of nodes show which node has slow links."""

import itertools

import pytest

from hydraulis.runtime.redistribute.link_check import pairings
from ranks import run_ranks
from runtime.redistribute.link_check_workers import gathers_with_slow_node


@pytest.mark.parametrize("nodes", range(2, 12))
def test_every_node_has_another_partner_in_each_round(nodes: int) -> None:
    rounds = pairings(nodes)
    # All pairs of up to four nodes.
    assert len(rounds) == min(3, nodes - 1 + nodes % 2)
    for pairs in rounds:
        members = list(itertools.chain(*pairs))
        assert len(members) == len(set(members)) == nodes - nodes % 2
        assert all(0 <= first < second < nodes for first, second in pairs)
    met = [pair for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))
    assert set(itertools.chain(*met)) == set(range(nodes))


def test_a_node_whose_bytes_are_carried_twenty_times_is_found_and_recovers() -> None:
    found, *others = run_ranks(3, gathers_with_slow_node, 1, 20, (12, 4, 4), ranks_per_node=1)
    assert others == [None, None]
    (became_slow, slow), (recovered, usual) = found.changes
    # Slow from step 13 to step 16: the plan of the third step is the first that knows it.
    assert (slow.nodes, usual.nodes, usual.slowdown) == ((1,), (1,), 1.0)
    assert slow.slowdown > 3
    assert 13 < became_slow <= 15
    assert 17 < recovered <= 20
    assert found.slowdowns[became_slow - 1] == [1.0, slow.slowdown, 1.0]
    assert found.slowdowns[-1] == []
    (pair_ms,) = found.pair_ms
    assert min(pair_ms, key=pair_ms.__getitem__) == (0, 2)
