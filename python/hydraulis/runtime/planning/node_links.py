"""Slow links between nodes: found from the transfers of every step, and planned for at their slowdown.

An observation is the time of a step's parameter gather between nodes over the time that the links' rates
predict for its bytes and messages, divided by the usual value of that ratio, which is the median of the
first `USUAL` observations. So errors of the stated rates cancel, and links are judged by the run's own past.

- All ranks of a rail exchange together, and each takes the time of the slowest. Ranks start at different
  moments, and a late start is no slow link: the shortest time of the rail's busiest ranks counts. The slowest
  rail decides.
- The slowdown is the median of the last `WINDOW` observations. Links become slow when it reaches the
  threshold, so two of three steps decide, and recover when it falls below the middle of 1 and the threshold.
  In between, a change of more than `CHANGE` is followed.
- Gathers that would usually take less than `LEAST_MS` are too short to judge.

An exchange in which all nodes take part does not show which of them is slow. On more than two nodes they
therefore exchange in pairs once when links become slow (`redistribute/link_check.py`), between two steps: the
nodes whose shortest exchange is slow are the cause, and all of them if none stands out.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hydraulis._core import Cluster, LinkRates
from hydraulis.planner.links import MOST_SLOWDOWN
from hydraulis.runtime.step_result import TimedCrossing

SLOW_LINKS = "slow links"
"""Question to each rank, which rank 0 answers: whether the nodes should exchange in pairs (see `Votes`)."""
WINDOW = 3
"""Observations whose median is the slowdown."""
USUAL = 8
"""Observations whose median is the usual ratio of measured over predicted time."""
CHANGE = 1.15
"""Factor between a slowdown and the one in use that changes the one in use."""
LEAST_MS = 20.0
"""Usual time of a gather between nodes, below which a step is no observation."""
# Ranks of a rail with less than this share of its largest predicted time may be done early.
_BUSY = 0.8


class LinkChange(NamedTuple):
    """Links that became slow, or recovered.

    Attributes:
        nodes: Numbers of the nodes whose links they are; all nodes if none stands out.
        slowdown: Time of transfers relative to the usual one; 1 for links that recovered.
    """

    nodes: tuple[int, ...]
    slowdown: float


class NodeLinks:
    """Keeps the slowdown of the links of every node.

    Args:
        cluster: Cluster of the run's ranks, of several nodes.
        rates: Rates of its links.
        threshold: Slowdown from which links are slow, above 1.
        factors: Factor of the time of each node's transfers where nodes of several kinds have links of
            several rates; empty for equal links.

    Attributes:
        needs_check: Whether the nodes should exchange in pairs to find the slow ones.
    """

    def __init__(
        self, cluster: Cluster, rates: LinkRates, threshold: float, factors: Sequence[float] = ()
    ) -> None:
        self._ranks_per_node = cluster.gpus_per_node
        self._num_nodes = cluster.gpus // cluster.gpus_per_node
        self._rates = rates
        self._factors = factors or [1.0] * self._num_nodes
        self._threshold = threshold
        self._recovered_below = (1 + threshold) / 2
        self._usual: float | None = None
        self._ratios: list[float] = []
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._slowdown = 1.0
        self._nodes = self._all_nodes
        # The nodes that were reported as slow, and the slowdown at their last check.
        self._reported: tuple[int, ...] = ()
        self._checked_at = 1.0
        self.needs_check = False

    @property
    def slowdowns(self) -> list[float]:
        """The slowdown of each node's links that plans count with; empty if no links are slow."""
        if self._slowdown == 1:
            return []
        if self._nodes == self._all_nodes:
            return [self._slowdown] * self._num_nodes
        # The slowdown is relative to the usual time of the slowest node; each node has its own.
        slowest = max(self._factors)
        return [
            self._slowdown * slowest / factor if node in self._nodes else 1.0
            for node, factor in enumerate(self._factors)
        ]

    def observe(self, crossings: Sequence[TimedCrossing]) -> list[LinkChange]:
        """Take the exchanges between nodes of a step, by rank; return links that became slow or recovered."""
        ratio = self._ratio(crossings)
        if ratio is None:
            return []
        if self._usual is None:
            self._ratios.append(ratio)
            if len(self._ratios) == USUAL:
                self._usual = statistics.median(self._ratios)
            return []
        self._last.append(ratio / self._usual)
        if len(self._last) < WINDOW:
            return []
        return self._update(statistics.median(self._last))

    def take_check(self, pair_ms: Mapping[tuple[int, int], float]) -> list[LinkChange]:
        """Take the times of exchanges between pairs of nodes, and return the links that they show as slow.

        Args:
            pair_ms: Time in ms of the exchange of each pair; each node is in one of them at least.
        """
        self.needs_check = False
        if self._slowdown == 1:
            return []
        # A pair usually takes the time of its slower node. A fast partner shows that a node is fast.
        relative = {pair: ms / max(self._factors[node] for node in pair) for pair, ms in pair_ms.items()}
        shortest = [min(ms for pair, ms in relative.items() if node in pair) for node in self._all_nodes]
        usual = statistics.median_low(shortest)
        slow = tuple(node for node in self._all_nodes if shortest[node] >= self._recovered_below * usual)
        self._nodes = slow or self._all_nodes
        self._checked_at = self._slowdown
        return self._report()

    @property
    def _all_nodes(self) -> tuple[int, ...]:
        return tuple(range(self._num_nodes))

    def _ratio(self, crossings: Sequence[TimedCrossing]) -> float | None:
        """Return measured over predicted time of the slowest rail; None if it is too short."""
        found = None
        for rail in range(self._ranks_per_node):
            members = crossings[rail :: self._ranks_per_node]
            # Ranks of slower nodes take longer for as many bytes, and are no busier.
            at_full_rate = [self._predicted_ms(one, 1.0) for one in members]
            most = max(map(self._predicted_ms, members, self._factors), default=0.0)
            if most == 0:
                continue
            busiest = _BUSY * max(at_full_rate)
            measured = min(one.ms for one, ms in zip(members, at_full_rate, strict=True) if ms >= busiest)
            usual_ms = measured if self._usual is None else most * self._usual
            if usual_ms >= LEAST_MS:
                found = max(measured / most, found or 0.0)
        return found

    def _predicted_ms(self, crossing: TimedCrossing, factor: float) -> float:
        """Predict the time of a rank's exchanges by the links' rates, at its share of its node's links."""
        bytes_per_ms = 1e6 * self._rates.gigabytes_per_s / self._ranks_per_node
        return factor * crossing.bytes / bytes_per_ms + crossing.messages * self._rates.message_us / 1e3

    def _update(self, slowdown: float) -> list[LinkChange]:
        assert self._usual is not None
        if slowdown * self._recovered_below <= 1:
            # The first steps were slow themselves.
            self._usual *= slowdown
            self._last = deque((one / slowdown for one in self._last), maxlen=WINDOW)
            slowdown = 1.0
        if self._slowdown == 1:
            return self._become_slow(slowdown) if slowdown >= self._threshold else []
        if slowdown < self._recovered_below:
            return self._recover()
        if max(slowdown / self._slowdown, self._slowdown / slowdown) > CHANGE:
            self._slowdown = _rounded(slowdown)
            # Far slower than before: other links may have become slow too.
            self.needs_check = self._num_nodes > 2 and slowdown >= self._threshold * self._checked_at
        return []

    def _become_slow(self, slowdown: float) -> list[LinkChange]:
        self._slowdown = self._checked_at = _rounded(slowdown)
        self._nodes = self._all_nodes
        self.needs_check = self._num_nodes > 2
        return [] if self.needs_check else self._report()

    def _recover(self) -> list[LinkChange]:
        recovered, self._reported = self._reported, ()
        self._slowdown, self.needs_check = 1.0, False
        return [LinkChange(recovered, 1.0)] if recovered else []

    def _report(self) -> list[LinkChange]:
        """Report the slow nodes, once."""
        if self._nodes == self._reported:
            return []
        self._reported = self._nodes
        return [LinkChange(self._nodes, self._slowdown)]


def _rounded(slowdown: float) -> float:
    """Round to two digits."""
    return float(f"{min(max(slowdown, 1.0), MOST_SLOWDOWN):.2g}")
