"""The step of other frameworks' batching against a proven floor.

    make bench-peers

Lengths are lognormal, median 1,500 and sigma 1.2, clipped at the cap. A sequence of s tokens takes 24,576 s +
s^2. The floor of a barrier is the proven lower bound of `hydraulis.balance`. A planner that does not know the
barrier is judged by both. CPU time is of one thread, the least of several runs. A row has the worst of
several seeds in every column but the fill, which is their mean.
"""

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from benches.peers.table import Row, print_head, print_row
from datasets import disable_progress_bars

from hydraulis import balance

BARRIERS: tuple[Barrier, ...] = ("step", "micro_batch")
HEAD = ("n", "cap", "planner", "per step", "per micro-batch", "fill", "over cap", "CPU ms")
# A planner that takes longer is run once.
SLOW_MS = 500.0
# Larger steps have one seed: some planners take a minute for each.
SLOW_SEQUENCES = 4_096


@dataclass(frozen=True, slots=True)
class Verdict:
    """One planner on one workload, or on several of the same size.

    Attributes:
        per_step: Time of the step over its floor, with one barrier per step.
        per_micro_batch: The same with one barrier per micro-batch.
        fill: Tokens over the caps of all micro-batches.
        over_cap: Share of micro-batches above the cap.
        cpu_ms: CPU time of planning one step.
    """

    per_step: float
    per_micro_batch: float
    fill: float
    over_cap: float
    cpu_ms: float

    @classmethod
    def of_seeds(cls, verdicts: Sequence["Verdict"]) -> "Verdict":
        """Return the worst of several verdicts, and the mean fill."""
        return cls(
            per_step=max(one.per_step for one in verdicts),
            per_micro_batch=max(one.per_micro_batch for one in verdicts),
            fill=sum(one.fill for one in verdicts) / len(verdicts),
            over_cap=max(one.over_cap for one in verdicts),
            cpu_ms=max(one.cpu_ms for one in verdicts),
        )

    def texts(self) -> Row:
        """Return the columns of the table."""
        ratios = f"{self.per_step:.4f}", f"{self.per_micro_batch:.4f}"
        return *ratios, f"{self.fill:.1%}", f"{self.over_cap:.1%}", f"{self.cpu_ms:.2f}"


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


def judge(work: dict[Barrier, Workload], floors: dict[Barrier, float], name: str, runs: int) -> Verdict:
    """Plan with both barriers, and check that no sequence is lost."""
    planned: dict[Barrier, MicroBatches] = {}
    least: dict[Barrier, float] = {}
    for barrier in BARRIERS:
        for _ in range(runs):
            watch = Stopwatch()
            planned[barrier] = PLANNERS[name](work[barrier], watch)
            least[barrier] = min(watch.cpu_ms, least.get(barrier, watch.cpu_ms))
            if watch.cpu_ms > SLOW_MS:
                break
    lengths, cap = work["step"].lengths, work["step"].cap_tokens
    for parts in planned.values():
        flat = [length for rank in parts for part in rank for length in part]
        assert sorted(flat) == sorted(lengths.tolist()), f"{name} lost or repeated a sequence"
    packs = [sum(part) for parts in planned.values() for rank in parts for part in rank]
    return Verdict(
        per_step=time_of(planned["step"], "step") / floors["step"],
        per_micro_batch=time_of(planned["micro_batch"], "micro_batch") / floors["micro_batch"],
        fill=2 * int(lengths.sum()) / (len(packs) * cap),
        over_cap=sum(tokens > cap for tokens in packs) / len(packs),
        cpu_ms=max(least.values()),
    )


def prepare(
    sequences: int, cap: int, ranks: int, seed: int
) -> tuple[dict[Barrier, Workload], dict[Barrier, float]]:
    """Draw a step for both barriers, and compute their floors."""
    lengths = draw(sequences, cap, seed)
    work: dict[Barrier, Workload] = {}
    for barrier in BARRIERS:
        own = PLANNERS["hydraulis"](Workload(lengths, ranks, cap, barrier, count=1), Stopwatch())
        work[barrier] = Workload(lengths, ranks, cap, barrier, count=max(map(len, own)))
    return work, {barrier: floor(lengths, ranks, cap, barrier) for barrier in BARRIERS}


def compare(sequences: int, cap: int, ranks: int, seeds: int, runs: int) -> Iterator[Row]:
    """Yield a row for each planner."""
    prepared = [prepare(sequences, cap, ranks, seed) for seed in range(seeds)]
    for name in PLANNERS:
        verdicts = [judge(work, floors, name, runs) for work, floors in prepared]
        yield f"{sequences:,}", f"{cap:,}", name, *Verdict.of_seeds(verdicts).texts()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[512, 4_096, 32_768], metavar="N")
    parser.add_argument("--caps", type=int, nargs="+", default=[32_768, 131_072], metavar="TOKENS")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3, metavar="K", help="seeds 0 to K - 1")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    # The packages' progress bars and notes.
    disable_progress_bars()
    logging.disable(logging.INFO)
    print_head(HEAD)
    for sequences in options.sequences:
        for cap in options.caps:
            seeds = options.seeds if sequences <= SLOW_SEQUENCES else 1
            for row in compare(sequences, cap, options.ranks, seeds, options.runs):
                print_row(row)


if __name__ == "__main__":
    main()
