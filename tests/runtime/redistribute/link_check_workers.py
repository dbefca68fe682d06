"""Workers of test_link_check.py: pretended nodes, of which one sends and receives all several times."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Cluster, LinkRates
from hydraulis.runtime.planning.node_links import USUAL, LinkChange, NodeLinks
from hydraulis.runtime.ranks import host
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, StartedExchange
from hydraulis.runtime.redistribute.link_check import Pair, measure_pairs
from hydraulis.runtime.step_result import TimedCrossing
from runtime.tiny import make_worker, plan_for
from small_model import small_config

Counts = npt.NDArray[np.int64]


class SlowNode:
    """Carries all bytes between one node and the others several times, once it is on.

    Every rank repeats its exchanges in a group between nodes, with the counts of that node alone, so the work
    is real and the received values are the same.

    Args:
        node: Number of the node, of one rank.
        times: How many times its bytes are carried.

    Attributes:
        is_on: Whether they are repeated.
    """

    def __init__(self, node: int, times: int) -> None:
        self.is_on = False
        self._node, self._times = node, times
        self._start = ExchangeGroup.start
        own = self

        def start(group: ExchangeGroup, *arguments: Any) -> StartedExchange:
            return own.started(group, *arguments)

        setattr(ExchangeGroup, "start", start)  # noqa: B010

    def started(
        self, group: ExchangeGroup, outgoing: Tensor, incoming: Tensor, sent: Counts, received: Counts
    ) -> StartedExchange:
        """Start an exchange as often as its bytes are carried; the last one is the exchange itself."""
        if self.is_on and len(sent) > 1:
            sent_again, received_again = self._of_node(sent), self._of_node(received)
            left, right = (outgoing.new_zeros(int(one.sum())) for one in (sent_again, received_again))
            for _ in range(self._times - 1):
                self._start(group, left, right, sent_again, received_again).wait()
        return self._start(group, outgoing, incoming, sent, received)

    def _of_node(self, counts: Counts) -> Counts:
        if dist.get_rank() == self._node:
            return counts
        return np.where(np.arange(len(counts)) == self._node, counts, 0)


class Found(NamedTuple):
    """What a run of steps found on rank 0.

    Attributes:
        changes: Step and change of each report.
        slowdowns: Slowdowns after each step.
        pair_ms: Times of the pairs at each check.
    """

    changes: list[tuple[int, LinkChange]]
    slowdowns: list[list[float]]
    pair_ms: list[dict[Pair, float]]


def gathers_with_slow_node(node: int, times: int, spans: Sequence[int]) -> Found | None:
    """Gather parameters in steps, those of the second span with a slow node, and observe them."""
    ranks = dist.get_world_size()
    config = small_config(hidden_size=256, intermediate_size=1024, num_hidden_layers=2)
    worker = make_worker([f"{ranks}x<1>"], config=config)
    plan, cluster = plan_for(ranks, f"{ranks}x<1>", [9] * ranks), Cluster(ranks, 1)
    links = NodeLinks(cluster, LinkRates(gigabytes_per_s=0.5), 3.0)
    slow, found, step = SlowNode(node, times), Found([], [], []), 0
    assert worker.redistribution.between_nodes is not None
    for number, span in enumerate(spans):
        slow.is_on = number == 1
        for _ in range(span):
            step += 1
            dist.barrier()
            worker.timers.read()
            worker.redistribution.gather_parameters(plan)
            crossing = TimedCrossing(worker.timers.read().crossing_ms, *worker.redistribution.crossing)
            rows = host.gather(torch.tensor(crossing, dtype=torch.float64))
            changes = [] if rows is None else links.observe([TimedCrossing(*row) for row in rows.tolist()])
            # In a run the votes of a step decide.
            needs = torch.tensor(float(links.needs_check))
            host.all_reduce(needs)
            if needs:
                pair_ms = measure_pairs(
                    worker.redistribution.between_nodes, worker.local_shard.gradient, cluster
                )
                if pair_ms:
                    found.pair_ms.append(pair_ms)
                    changes += links.take_check(pair_ms)
            found.changes.extend((step, change) for change in changes)
            found.slowdowns.append(links.slowdowns)
    assert step > USUAL
    return None if dist.get_rank() else found
