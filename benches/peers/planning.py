"""The step of other frameworks' batching against a proven floor, in one run.

    make bench-peers

Lengths are lognormal, median 1,500 and sigma 1.2, clipped at the cap. A sequence of s tokens takes 24,576 s +
s^2. The floor of a barrier is the proven lower bound of `hydraulis.balance`. A planner that does not know the
barrier is judged by both. CPU time is of one thread, the least of several runs.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
from benches.peers.planners import (
    LINEAR,
    PLANNERS,
    QUADRATIC,
    Barrier,
    MicroBatches,
    Stopwatch,
    Workload,
    cost,
)
from datasets import disable_progress_bars

from hydraulis import balance

BARRIERS: tuple[Barrier, ...] = ("step", "micro_batch")
ROW = "{:>6} {:>7}  {:<25} {:>8} {:>6} {:>8} {:>11} {:>9}\n"
HEAD = ("n", "cap", "planner", "per step", "per mb", "fill", "over cap", "CPU ms")


def time_of(parts: MicroBatches, barrier: Barrier) -> int:
    """Return the time of a step: of the slowest rank, or of the slowest micro-batch of each slot."""
    times = [[sum(map(cost, part)) for part in rank] for rank in parts]
    if barrier == "step":
        return max(map(sum, times))
    return sum(max(slot) for slot in zip_longest(*times, fillvalue=0))


def draw(sequences: int, cap: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw the lengths of one step."""
    drawn = np.random.default_rng(seed).lognormal(np.log(1_500), 1.2, sequences)
    return drawn.round().clip(1, cap).astype(np.int64)


def floor(lengths: npt.NDArray[np.int64], ranks: int, cap: int, barrier: Barrier) -> float:
    """Return the time below which no assignment under the cap is."""
    return balance(
        lengths,
        replicas=ranks,
        cap_tokens=cap,
        linear_ms_per_token=LINEAR,
        quadratic_ms_per_token2=QUADRATIC,
        barrier=barrier,
    ).lower_bound_ms


def judge(work: dict[Barrier, Workload], floors: dict[Barrier, float], name: str, runs: int) -> str:
    """Plan with both barriers, check that no sequence is lost, and write one row."""
    planned: dict[Barrier, MicroBatches] = {}
    least: dict[Barrier, float] = {}
    for barrier in BARRIERS:
        watches = [Stopwatch() for _ in range(runs)]
        for watch in watches:
            planned[barrier] = PLANNERS[name](work[barrier], watch)
        least[barrier] = min(watch.cpu_ms for watch in watches)
    lengths, cap = work["step"].lengths, work["step"].cap_tokens
    for parts in planned.values():
        flat = [length for rank in parts for part in rank for length in part]
        assert sorted(flat) == sorted(lengths.tolist()), f"{name} lost or repeated a sequence"
    packs = [sum(part) for parts in planned.values() for rank in parts for part in rank]
    ratios = [f"{time_of(planned[barrier], barrier) / floors[barrier]:.4f}" for barrier in BARRIERS]
    fill = f"{2 * int(lengths.sum()) / (len(packs) * cap):.1%}"
    over = f"{sum(tokens > cap for tokens in packs) / len(packs):.1%}"
    return ROW.format(len(lengths), cap, name, *ratios, fill, over, f"{max(least.values()):.2f}")


def compare(sequences: int, cap: int, ranks: int, seed: int, runs: int) -> None:
    """Print the rows of one workload."""
    lengths = draw(sequences, cap, seed)
    work: dict[Barrier, Workload] = {}
    for barrier in BARRIERS:
        one = Workload(lengths, ranks, cap, barrier, count=1)
        own = PLANNERS["hydraulis"](one, Stopwatch())
        work[barrier] = Workload(lengths, ranks, cap, barrier, count=max(map(len, own)))
    floors = {barrier: floor(lengths, ranks, cap, barrier) for barrier in BARRIERS}
    for name in PLANNERS:
        sys.stdout.write(judge(work, floors, name, runs))
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[512, 4_096, 32_768], metavar="N")
    parser.add_argument("--caps", type=int, nargs="+", default=[32_768, 131_072], metavar="TOKENS")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    # The packages' progress bars and notes.
    disable_progress_bars()
    logging.disable(logging.INFO)
    sys.stdout.write(ROW.format(*HEAD))
    for sequences in options.sequences:
        for cap in options.caps:
            compare(sequences, cap, options.ranks, options.seed, options.runs)


if __name__ == "__main__":
    main()
