"""Slow links between nodes are found by the time of transfers, planned for, and come back."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from hydraulis import Cluster, LinkRates
from hydraulis.runtime.planning.node_links import LEAST_MS, USUAL, LinkChange, NodeLinks
from hydraulis.runtime.redistribute.link_check import pairings
from hydraulis.runtime.step_result import TimedCrossing

RATES = LinkRates(gigabytes_per_s=10, message_us=0)
# 0.4 GB over a half of 10 GB/s: 80 ms.
BYTES = 400_000_000
# Transfers take this many times as long as the rates say, from the first step on.
ERROR = 1.7
Noise = Callable[[int, int], float]


class MadeUpRun:
    """A run on nodes of two ranks in which transfers take as long as stated.

    Args:
        nodes: Number of nodes.
        slowdowns: Slowdown of the links of some nodes.
        noise: Factor for each step and rank.
        threshold: Slowdown from which links are slow.
        size: Bytes of each rank.
        factors: Usual factor of each node's transfers; none for equal links.
    """

    def __init__(
        self,
        nodes: int,
        slowdowns: Mapping[int, float] | None = None,
        *,
        noise: Noise = lambda _step, _rank: 1.0,
        threshold: float = 2.0,
        size: int = BYTES,
        factors: Sequence[float] = (),
    ) -> None:
        self.nodes = nodes
        self.factors = factors or [1.0] * nodes
        self.slowdowns = dict(slowdowns or {})
        self.noise = noise
        self.size = size
        self.late_ms = dict.fromkeys(range(2 * nodes), 0.0)
        self.links = NodeLinks(Cluster(2 * nodes, 2), RATES, threshold, factors)
        self.changes: list[tuple[int, LinkChange]] = []
        self.num_checks = 0
        self.step = 0

    def steps(self, number: int) -> "MadeUpRun":
        """Observe steps in which every rank takes the time of the slowest node."""
        for _ in range(number):
            self.step += 1
            slowest = max(map(self._factor, range(self.nodes)))
            usual_ms = ERROR * self.size / 5e6
            crossings = [
                TimedCrossing(usual_ms * slowest * self.noise(self.step, rank) + late, self.size, 1)
                for rank, late in self.late_ms.items()
            ]
            self.changes += [(self.step, change) for change in self.links.observe(crossings)]
            self._check()
        return self

    def _factor(self, node: int) -> float:
        return self.factors[node] * self.slowdowns.get(node, 1.0)

    def _check(self) -> None:
        if not self.links.needs_check:
            return
        self.num_checks += 1
        pairs = [pair for pairs in pairings(self.nodes) for pair in pairs]
        found = {pair: 5.0 * max(map(self._factor, pair)) for pair in pairs}
        self.changes += [(self.step, change) for change in self.links.take_check(found)]


def test_equal_links_are_never_slow_though_their_rate_is_stated_wrongly() -> None:
    run = MadeUpRun(4).steps(3 * USUAL)
    assert run.links.slowdowns == []
    assert (run.changes, run.num_checks) == ([], 0)


@pytest.mark.parametrize(
    ("nodes", "slow", "named"), [(2, 1, (0, 1)), (3, 1, (1,)), (4, 3, (3,)), (5, 0, (0,)), (8, 6, (6,))]
)
def test_a_slow_node_is_known_after_two_steps_and_told_once(
    nodes: int, slow: int, named: tuple[int, ...]
) -> None:
    run = MadeUpRun(nodes).steps(USUAL + 3)
    run.slowdowns = {slow: 3.0}
    run.steps(1)
    assert run.links.slowdowns == []
    run.steps(1)
    # Of two nodes the link between them is slow, whichever is the cause.
    expected = [3.0 if node in named else 1.0 for node in range(nodes)]
    assert run.links.slowdowns == expected
    assert run.changes == [(USUAL + 5, LinkChange(named, 3.0))]
    run.steps(20)
    assert run.links.slowdowns == expected
    assert len(run.changes) == 1
    assert run.num_checks == (nodes > 2)


@pytest.mark.parametrize(("slow", "nodes"), [({1: 12.0}, (1,)), ({2: 3.0}, (2,)), ({2: 3.0, 3: 3.0}, (2, 3))])
def test_nodes_of_slower_links_are_no_slow_nodes(slow: dict[int, float], nodes: tuple[int, ...]) -> None:
    run = MadeUpRun(6, factors=(1.0, 1.0, 4.0, 4.0, 4.0, 4.0)).steps(USUAL + 10)
    assert run.changes == []
    run.slowdowns = slow
    (change,) = [change for _, change in run.steps(5).changes]
    # The slowest links take 3 times as long as the slowest usually do.
    assert change == LinkChange(nodes, 3.0)
    assert run.links.slowdowns == [slow.get(node, 1.0) for node in range(6)]


@pytest.mark.parametrize("factors", [(4.0, 1.0), (4.0, 4.0, 1.0, 1.0)])
def test_all_links_together_are_slower_by_one_factor(factors: tuple[float, ...]) -> None:
    run = MadeUpRun(len(factors), factors=factors).steps(USUAL + 3)
    run.slowdowns = dict.fromkeys(range(len(factors)), 3.0)
    assert run.steps(5).links.slowdowns == [3.0] * len(factors)


def test_links_that_are_slow_together_are_named_together() -> None:
    run = MadeUpRun(6).steps(USUAL + 3)
    run.slowdowns = dict.fromkeys(range(6), 4.0)
    run.steps(2)
    assert run.changes == [(USUAL + 5, LinkChange((0, 1, 2, 3, 4, 5), 4.0))]
    assert run.links.slowdowns == [4.0] * 6
    two = MadeUpRun(6).steps(USUAL + 3)
    two.slowdowns = {1: 4.0, 4: 4.0}
    two.steps(2)
    assert two.links.slowdowns == [1.0, 4.0, 1.0, 1.0, 4.0, 1.0]


def test_links_recover_below_the_middle_and_are_told_once() -> None:
    run = MadeUpRun(3).steps(USUAL + 3)
    run.slowdowns = {2: 3.0}
    run.steps(5)
    # Between 1.5 and the threshold they stay slow, at the new slowdown.
    run.slowdowns = {2: 1.6}
    run.steps(5)
    assert run.links.slowdowns == [1.0, 1.0, 1.6]
    run.slowdowns = {2: 1.4}
    run.steps(2)
    assert run.links.slowdowns == []
    run.steps(5)
    assert [change for _, change in run.changes] == [LinkChange((2,), 3.0), LinkChange((2,), 1.0)]
    # The threshold alone makes them slow again.
    run.slowdowns = {2: 1.9}
    assert run.steps(5).links.slowdowns == []


def test_a_change_within_fifteen_percent_is_not_followed() -> None:
    run = MadeUpRun(3).steps(USUAL + 3)
    run.slowdowns = {2: 3.0}
    run.steps(3)
    run.slowdowns = {2: 3.4}
    assert run.steps(5).links.slowdowns == [1.0, 1.0, 3.0]
    run.slowdowns = {2: 3.6}
    assert run.steps(5).links.slowdowns == [1.0, 1.0, 3.6]
    assert run.num_checks == 1


def test_a_second_node_that_is_far_slower_is_found_too() -> None:
    run = MadeUpRun(4).steps(USUAL + 3)
    run.slowdowns = {2: 2.0}
    run.steps(3)
    run.slowdowns = {2: 2.0, 0: 8.0}
    run.steps(3)
    assert run.num_checks == 2
    assert run.changes[-1][1] == LinkChange((0, 2), 8.0)


def test_single_slow_steps_and_noise_are_no_slow_links() -> None:
    rng = np.random.default_rng(0)
    run = MadeUpRun(4, noise=lambda step, _: 5.0 if step % 3 == 0 else 1.0).steps(60)
    assert run.changes == []
    wide = MadeUpRun(4, noise=lambda *_: float(np.exp(rng.normal(0, 0.3)))).steps(300)
    assert wide.changes == []


@pytest.mark.parametrize("factors", [(), (1.0, 1.0, 1.0, 4.0)])
def test_a_rank_that_starts_late_is_no_slow_link(factors: tuple[float, ...]) -> None:
    run = MadeUpRun(4, factors=factors).steps(USUAL + 3)
    # All others wait for rank 5, and take longer by that.
    run.late_ms |= {rank: 2000.0 for rank in run.late_ms if rank != 5}
    run.late_ms[4] = 0.0
    assert run.steps(5).changes == []


def test_a_slow_device_of_a_node_is_a_slow_link() -> None:
    # The second rail alone is slow.
    run = MadeUpRun(2).steps(USUAL + 3)
    run.noise = lambda _, rank: 3.0 if rank % 2 else 1.0
    assert run.steps(2).links.slowdowns == [3.0, 3.0]


def test_short_transfers_are_not_judged() -> None:
    size = int(0.9 * LEAST_MS / ERROR * 5e6)
    run = MadeUpRun(2, size=size).steps(USUAL + 3)
    run.slowdowns = {1: 9.0}
    # Slow transfers are long enough, and would be taken for the usual ones after one more step.
    assert run.steps(USUAL - 1).links.slowdowns == []
    long = MadeUpRun(2, size=int(1.2 * LEAST_MS / ERROR * 5e6)).steps(USUAL + 3)
    long.slowdowns = {1: 9.0}
    assert long.steps(2).links.slowdowns == [9.0, 9.0]


def test_a_run_that_starts_while_links_are_busy_counts_from_its_faster_steps() -> None:
    run = MadeUpRun(2, {0: 4.0}).steps(USUAL + 3)
    run.slowdowns = {}
    run.steps(5)
    assert run.changes == []
    run.slowdowns = {0: 3.0}
    assert run.steps(2).links.slowdowns == [3.0, 3.0]


def test_a_run_that_starts_with_slow_links_takes_faster_steps_as_usual() -> None:
    # As after a resume: the slowdown of the run before is unknown.
    run = MadeUpRun(3, {1: 3.0}).steps(USUAL + 5)
    assert run.links.slowdowns == []
    run.slowdowns = {}
    run.steps(5)
    run.slowdowns = {1: 3.0}
    run.steps(3)
    assert [change for _, change in run.changes] == [LinkChange((1,), 3.0)]


def test_messages_and_unequal_nodes_count_by_the_rates() -> None:
    rates = LinkRates(gigabytes_per_s=10, message_us=1000)
    links = NodeLinks(Cluster(2, 1), rates, 2.0)
    # 10 ms of bytes and 40 ms of messages; the second node has half, and is done early.
    step = [TimedCrossing(50.0, 100_000_000, 40), TimedCrossing(1.0, 50_000_000, 20)]
    for _ in range(USUAL):
        links.observe(step)
    # Twice the bytes of the first node take 10 ms more.
    for _ in range(5):
        assert links.observe([TimedCrossing(60.0, 200_000_000, 40), step[1]]) == []
    slow = [TimedCrossing(150.0, 100_000_000, 40), step[1]]
    assert [links.observe(slow) for _ in range(2)] == [[], [LinkChange((0, 1), 3.0)]]
