"""Balancing against simpler ways, on lognormal lengths: quality as a multiple of the bound, and CPU time.

    python benches/balancing.py [--sequences N] [--seeds K]

64 replicas, cap 32,768, lengths of median 1,500 and sigma 1.2 clipped at the cap, 24,576 s + s^2 for a
sequence of s tokens. The peers are written here from their descriptions, as plainly as their users write
them: the longest-first heap (Graham 1969) and largest differencing (Karmarkar and Karp 1982), which know no
cap and balance whole steps; and first-fit decreasing, sorted by time and assigned in order, for slots. CPU
time is of one thread, and a row's count is of micro-batches.
"""

import argparse
import heapq
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from hydraulis import Balance, balance

REPLICAS, CAP = 64, 32_768
LINEAR, QUADRATIC = 24_576, 1
ROW = "{:>6} {:>5}  {:<12} {:<22} {:>9} {:>9} {:>9} {:>7}\n"


def cost(length: int) -> int:
    """Time of a sequence, in units of one token squared."""
    return LINEAR * length + QUADRATIC * length * length


class Outcome(NamedTuple):
    """What a way comes to.

    Attributes:
        value: Time of the step.
        micro_batches: Number of micro-batches; None for a way that makes none.
    """

    value: float
    micro_batches: int | None


def longest_first(lengths: list[int]) -> Outcome:
    """Each sequence, longest first, onto the replica of least time."""
    heap = [(0, replica) for replica in range(REPLICAS)]
    assigned: list[list[int]] = [[] for _ in range(REPLICAS)]
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        total, replica = heap[0]
        assigned[replica].append(place)
        heapq.heapreplace(heap, (total + cost(lengths[place]), replica))
    return Outcome(max(total for total, _ in heap), None)


def karmarkar_karp(lengths: list[int]) -> Outcome:
    """The two partitions of greatest spread become one, full parts with empty ones."""
    nothing: list[tuple[int, list[int]]] = [(0, []) for _ in range(REPLICAS - 1)]
    heap = [(-cost(length), at, [*nothing, (cost(length), [at])]) for at, length in enumerate(lengths)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, at, one = heapq.heappop(heap)
        _, _, other = heapq.heappop(heap)
        joined = [(a + b, mine + its) for (a, mine), (b, its) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: part[0])
        heapq.heappush(heap, (joined[0][0] - joined[-1][0], at, joined))
    return Outcome(heap[0][2][-1][0], None)


def first_fit(lengths: list[int]) -> Outcome:
    """Micro-batches packed first-fit decreasing, sorted by time, each `REPLICAS` of them a slot."""
    room = np.empty(0, dtype=np.int64)
    times: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = np.flatnonzero(room >= length)
        if fitting.size == 0:
            room, times = np.append(room, CAP), [*times, 0]
            fitting = np.array([len(times) - 1])
        room[fitting[0]] -= length
        times[fitting[0]] += cost(length)
    return Outcome(sum(sorted(times, reverse=True)[::REPLICAS]), len(times))


def balanced(lengths: list[int], barrier: Literal["step", "micro_batch"]) -> Balance:
    """What is measured, from an array as a loader has it."""
    return balance(
        np.array(lengths),
        replicas=REPLICAS,
        cap_tokens=CAP,
        linear_ms_per_token=LINEAR,
        quadratic_ms_per_token2=QUADRATIC,
        barrier=barrier,
    )


def hydraulis(lengths: list[int], barrier: Literal["step", "micro_batch"]) -> Outcome:
    """The balance of one barrier."""
    result = balanced(lengths, barrier)
    return Outcome(result.iteration_ms, len(result.micro_batch_ms))


def least_cpu_ms(work: Callable[[], object], runs: int) -> float:
    """Least CPU time of some runs, in ms."""
    times = []
    for _ in range(runs):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times) * 1e3


def ways(lengths: list[int]) -> Iterable[tuple[str, str, Callable[[], Outcome], int]]:
    """Barrier, name, work and runs of each way."""
    yield "micro_batch", "hydraulis", partial(hydraulis, lengths, "micro_batch"), 5
    yield "micro_batch", "first fit, sorted", partial(first_fit, lengths), 1
    yield "step", "hydraulis", partial(hydraulis, lengths, "step"), 5
    yield "step", "longest-first heap", partial(longest_first, lengths), 5
    yield "step", "Karmarkar-Karp", partial(karmarkar_karp, lengths), 1


def compare(lengths: list[int], seed: int) -> Iterable[str]:
    """One row for each way."""
    ideal = sum(map(cost, lengths)) / REPLICAS
    bounds = {
        "micro_batch": balanced(lengths, "micro_batch").lower_bound_ms,
        "step": balanced(lengths, "step").lower_bound_ms,
    }
    for barrier, name, work, runs in ways(lengths):
        value, count = work()
        ratios = (f"{value / bounds[barrier]:.5f}", f"{value / ideal:.5f}")
        ms = f"{least_cpu_ms(work, runs):.2f}"
        yield ROW.format(len(lengths), seed, barrier, name, *ratios, ms, count or "no cap")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[4_096, 32_768], metavar="N")
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds 0 to K - 1")
    arguments = parser.parse_args()
    sys.stdout.write(ROW.format("n", "seed", "barrier", "way", "to bound", "to ideal", "CPU ms", "count"))
    for n in arguments.sequences:
        for seed in range(arguments.seeds):
            drawn = np.random.default_rng(seed).lognormal(np.log(1_500), 1.2, n)
            lengths = drawn.round().clip(1, CAP).astype(int).tolist()
            for line in compare(lengths, seed):
                sys.stdout.write(line)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
