"""Slow links between nodes in a run: their observation, their check in pairs of nodes, and their messages."""

from collections.abc import Iterator, Sequence

from hydraulis.runtime.planning.node_links import SLOW_LINKS, LinkChange
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.redistribute.link_check import measure_pairs
from hydraulis.runtime.step_result import TimedCrossing
from hydraulis.runtime.worker import Worker
from hydraulis.train.observer import TrainingObserver

# Most hosts that a message names.
_MAX_NAMED = 8


class SlowLinks:
    """Finds links that became slow or recovered, and reports them.

    Args:
        worker: This rank's worker.
        planner: Planner of the run, which observes links on rank 0 only.
        hosts: Name of each rank's host; on rank 0 only.
        observer: Receiver of the messages.
    """

    def __init__(
        self, worker: Worker, planner: RunPlanner, hosts: Sequence[str], observer: TrainingObserver
    ) -> None:
        self._worker, self._planner = worker, planner
        self._hosts, self._observer = hosts, observer
        if worker.redistribution.between_nodes is not None:
            worker.votes.ask(SLOW_LINKS, self._needs_check)

    def observe(self, step: int, crossings: Sequence[TimedCrossing]) -> None:
        """Let the planner observe a step's exchanges between nodes, on rank 0."""
        self._report(step, self._planner.observe_links(crossings))

    def check(self, step: int) -> None:
        """Let the nodes exchange in pairs if rank 0 asked for it in this step. Collective."""
        between = self._worker.redistribution.between_nodes
        if between is None or not self._worker.votes.count(SLOW_LINKS):
            return
        shard = self._worker.local_shard
        pair_ms = measure_pairs(between, shard.gradient[: shard.common_gradients], self._worker.cluster)
        if self._planner.node_links is not None and pair_ms:
            self._report(step, self._planner.node_links.take_check(pair_ms))

    def _needs_check(self) -> bool:
        return self._planner.node_links is not None and self._planner.node_links.needs_check

    def _report(self, step: int, changes: Sequence[LinkChange]) -> None:
        for message in link_messages(step, changes, self._hosts, self._worker.cluster.gpus_per_node):
            self._observer.message(message)


def link_messages(
    step: int, changes: Sequence[LinkChange], hosts: Sequence[str], ranks_per_node: int
) -> Iterator[str]:
    """Describe links between nodes that became slow or recovered.

    Args:
        step: Number of the step whose times decided.
        changes: Nodes whose links became slow or recovered.
        hosts: Name of each rank's host.
        ranks_per_node: Ranks of each node.
    """
    num_nodes = len(hosts) // ranks_per_node
    for nodes, slowdown in changes:
        is_all = len(nodes) == num_nodes
        named = _hosts([hosts[node * ranks_per_node] for node in nodes])
        links = f"transfers between {named}" if is_all else f"transfers to and from {named}"
        if slowdown == 1:
            yield f"step {step}: {links} take their usual time again"
        else:
            cause = ", of which none stands out," if is_all and num_nodes > 2 else ""
            yield (
                f"step {step}: {links}{cause} take {slowdown:g} times as long as usual; plans count with it "
                "from now on"
            )


def _hosts(names: Sequence[str]) -> str:
    *others, last = names[:_MAX_NAMED]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    if more or not others:
        return f"{', '.join([*others, last])}{more}"
    return f"{', '.join(others)} and {last}"
