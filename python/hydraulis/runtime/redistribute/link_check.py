"""Exchanges between pairs of nodes, which show whose links are slow.

They take place between two steps, when the transfers of a step have become slow, in the groups and the memory
of the parameter gather: in each of at most three rounds every node exchanges with another partner, and a rank
with the rank of its place there.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Cluster
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.host_wait import wait_for_device
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup

Pair = tuple[int, int]

_MOST_ROUNDS = 3
# The first exchange of a round also waits for the partner's start.
_REPETITIONS = 3
_MOST_BYTES = 16 << 20


def pairings(nodes: int) -> list[list[Pair]]:
    """Return the pairs of each round, in which no node occurs twice; every node has a partner in some round.

    Args:
        nodes: Number of nodes, at least 2.
    """
    # The circle method; with an odd number one node has no partner.
    size = nodes + nodes % 2
    rounds = []
    for first in range(min(_MOST_ROUNDS, size - 1)):
        steps = range(1, size // 2)
        others = [((first + step) % (size - 1), (first - step) % (size - 1)) for step in steps]
        pairs = [(first, size - 1), *others]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < nodes])
    return rounds


def measure_pairs(group: ExchangeGroup, buffer: Tensor, cluster: Cluster) -> dict[Pair, float]:
    """Time exchanges between pairs of nodes; return their ms on rank 0, {} elsewhere. Collective.

    Args:
        group: Group of this rank's rail.
        buffer: Memory that the exchanges may overwrite, of the same size on every rank.
        cluster: Cluster of the ranks, of several nodes.
    """
    nodes = cluster.gpus // cluster.gpus_per_node
    node = dist.get_rank() // cluster.gpus_per_node
    rounds = pairings(nodes)
    times = [_exchange_ms(group, buffer, nodes, _partner(pairs, node)) for pairs in rounds]
    rows = host.gather(torch.tensor(times, dtype=torch.float64))
    if rows is None:
        return {}
    # By node, rail and round; the slowest rail counts.
    by_node = rows.reshape(nodes, cluster.gpus_per_node, len(rounds))
    return {
        pair: float(torch.maximum(by_node[pair[0], :, number], by_node[pair[1], :, number]).max())
        for number, pairs in enumerate(rounds)
        for pair in pairs
    }


def _partner(pairs: list[Pair], node: int) -> int | None:
    return next((sum(pair) - node for pair in pairs if node in pair), None)


def _exchange_ms(group: ExchangeGroup, buffer: Tensor, nodes: int, partner: int | None) -> float:
    """Exchange with a partner several times; return the shortest time."""
    elements = min(len(buffer) // 2, _MOST_BYTES // buffer.itemsize)
    counts = torch.zeros(nodes, dtype=torch.int64).numpy()
    if partner is None:
        elements = 0
    else:
        counts[partner] = elements
    outgoing, incoming = buffer[:elements], buffer[elements : 2 * elements]
    times = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        group.start(outgoing, incoming, counts, counts).wait()
        # On CUDA only the stream has waited.
        wait_for_device(buffer.device)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)
