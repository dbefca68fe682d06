"""The model of hosts and devices stops where it should, and nowhere else."""

import pytest

from runtime.redistribute.launches import Launch
from runtime.redistribute.replay import Adversary, HostWaits, Stuck, replay


def met(name: str, peer: int, *waits: int, stream: str = "") -> Launch:
    """Communicate with another rank, each communication in a stream of its own."""
    return Launch((name,), stream or name, waits, name, (peer,))


def compute(name: str, *waits: int) -> Launch:
    return Launch((name,), "compute", waits)


CROSSED = [[met("a", 1), met("b", 1)], [met("b", 0), met("a", 0)]]
AHEAD = [[met("a", 1), compute("c"), met("b", 1)], [met("b", 0), met("a", 0, 0)]]


@pytest.mark.parametrize(
    ("ranks", "adversary", "is_stuck"),
    [
        (CROSSED, Adversary(), False),
        (CROSSED, Adversary(HostWaits.COMPUTATIONS), False),
        (CROSSED, Adversary(HostWaits.LAUNCHES), True),
        (CROSSED, Adversary(resident=1), True),
        (CROSSED, Adversary(resident=2), False),
        (CROSSED, Adversary(opens_pairs=True), True),
        # Rank 0 computes during a communication for which rank 1 needs another one.
        (AHEAD, Adversary(), False),
        (AHEAD, Adversary(HostWaits.COMPUTATIONS), True),
    ],
)
def test_two_ranks_deadlock_only_if_the_adversary_blocks_both(
    ranks: list[list[Launch]], adversary: Adversary, *, is_stuck: bool
) -> None:
    assert bool(replay(ranks, adversary)) == is_stuck


def test_a_pair_is_opened_once_in_each_stream() -> None:
    opened = [
        [met("o", 1, stream="s"), met("p", 1, stream="t")],
        [met("o", 0, stream="s"), met("p", 0, stream="t")],
    ]
    crossed = [
        [met("a", 1, stream="s"), met("b", 1, stream="t")],
        [met("b", 0, stream="t"), met("a", 0, stream="s")],
    ]
    both = [before + after for before, after in zip(opened, crossed, strict=True)]
    assert replay(both, Adversary(opens_pairs=True)) == []


def test_a_deadlocked_rank_names_its_next_launch() -> None:
    ranks = [[compute("c"), met("a", 1, 0), compute("d", 1)], [compute("e")]]
    assert replay(ranks, Adversary()) == [Stuck(0, None, [("a",), ("d",)])]
    assert replay(ranks, Adversary(HostWaits.COMPUTATIONS)) == [Stuck(0, ("d",), [("a",)])]
