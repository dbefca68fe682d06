"""What split backwards, and sequences in chunks, would take off iterations with pipelines.

    python -m benches.pipeline_bubbles --lengths FILE|lognormal:MEAN,DEVIATION [--profile PROFILE]

A stage of a pipeline under 1F1B waits while the pipeline fills and drains. Two methods shorten that:

- `split`: a backward computes the gradient of its input; the weights' gradients follow where the stage would
  wait, with no more micro-batches in flight than on the first stage (ZB-H1; Qi et al., arXiv:2401.10241);
- `chunks`: sequences pass the stages in chunks, whose keys and values stay (Sun et al., arXiv:2406.03488).
  All chunks of a replica are taken to be equally long in time, which is best, each with a fixed time.

No search knows the times of these methods. Their plans come from searches in which pipelines never wait, at
their own speed and up to 15 % slower (`no waits` is the first of them). Each pipeline's sequences are packed
and timed again by the method. `found` is the shortest iteration of these plans and of the plan under 1F1B.
`even` is the mean over the replicas of a plan, weighted by their ranks, at its least: about what a search
would find that moves sequences to the replicas that end early. For `split` it also counts the plan under
1F1B, whose micro-batches then run with split backwards.

The times are means over batches on 64 GPUs in nodes of 8.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from benches.context_degrees import CLUSTER, Batch, drawn, stand_in, without_bubbles

from hydraulis import CostProfile, Plan, Planner, Scheme
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile

# Shares of the time of a micro-batch: its forward, and the weights' gradients among its linear time.
FORWARD = WEIGHTS = 1 / 3
SLOWER = (0.0, 0.04, 0.08, 0.15)
CHUNKS = (512, 1024, 2048, 4096, 8192)


class Times(NamedTuple):
    """Times of a micro-batch on each stage, in ms.

    Attributes:
        forward: Its forward.
        inputs: Gradient of its input.
        weights: Gradients of the weights.
    """

    forward: float
    inputs: float
    weights: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline to time again.

    Attributes:
        stages: Number of stages.
        cap: Most tokens of a micro-batch.
        quadratic: Time of a stage in ms per token squared.
        linear: Time of a stage in ms per token.
        fixed: Time of a stage in ms per micro-batch.
    """

    stages: int
    cap: int
    quadratic: float
    linear: float
    fixed: float

    def times(self, lengths: Sequence[int]) -> Times:
        """Return the times of a micro-batch with sequences of these lengths."""
        linear = self.linear * sum(lengths)
        whole = self.quadratic * sum(length * length for length in lengths) + linear + self.fixed
        weights = WEIGHTS * linear
        return Times(FORWARD * whole, (1 - FORWARD) * whole - weights, weights)


def makespan(stages: int, micro_batches: Sequence[Times], *, split: bool) -> float:
    """Return the time of a pipeline under 1F1B, or with split backwards, in ms."""
    run = _Run(stages, micro_batches, split=split)
    while run.step():
        pass
    return run.end()


class _Run:
    """A pipeline in progress; stages compute in the order of 1F1B."""

    def __init__(self, stages: int, micro_batches: Sequence[Times], *, split: bool) -> None:
        self._stages, self._times, self._split = stages, micro_batches, split
        self._orders = [list(_order(stage, stages, len(micro_batches))) for stage in range(stages)]
        self._next = [0] * stages
        self._clock = [0.0] * stages
        self._in_flight = [0] * stages
        self._pending: list[list[int]] = [[] for _ in range(stages)]
        self._ends: dict[tuple[bool, int, int], float] = {}

    def step(self) -> bool:
        """Run the computation that can start first; False after the last one."""
        starts = [
            (max(self._clock[stage], arrived), stage)
            for stage in range(self._stages)
            if (arrived := self._arrival(stage)) is not None
        ]
        if not starts:
            return False
        start, stage = min(starts)
        is_forward, number = self._orders[stage][self._next[stage]]
        self._fill(stage, start, is_forward=is_forward)
        times = self._times[number]
        backward = times.inputs if self._split else times.inputs + times.weights
        end = max(start, self._clock[stage]) + (times.forward if is_forward else backward)
        self._clock[stage] = self._ends[is_forward, stage, number] = end
        self._next[stage] += 1
        self._in_flight[stage] += 1 if is_forward else -1
        if self._split and not is_forward:
            self._pending[stage].append(number)
        return True

    def end(self) -> float:
        """Return the end of the last stage, with all gradients of weights."""
        left = (sum(self._times[number].weights for number in pending) for pending in self._pending)
        return max(clock + ms for clock, ms in zip(self._clock, left, strict=True))

    def _arrival(self, stage: int) -> float | None:
        """Return the time at which the next computation has its input; None if that is unknown."""
        if self._next[stage] == len(self._orders[stage]):
            return None
        is_forward, number = self._orders[stage][self._next[stage]]
        if is_forward:
            return 0.0 if stage == 0 else self._ends.get((True, stage - 1, number))
        if stage == self._stages - 1:
            return self._ends.get((True, stage, number))
        return self._ends.get((False, stage + 1, number))

    def _fill(self, stage: int, start: float, *, is_forward: bool) -> None:
        """Compute gradients of weights that fit before the start, and those whose memory a forward needs."""
        pending = self._pending[stage]
        while pending:
            weights = self._times[pending[0]].weights
            needs_room = is_forward and self._in_flight[stage] + len(pending) >= self._stages
            # Up to a quarter of it may delay the next computation.
            if not needs_room and self._clock[stage] + 0.75 * weights > start:
                return
            self._clock[stage] += weights
            del pending[0]


def _order(stage: int, stages: int, micro_batches: int) -> Iterator[tuple[bool, int]]:
    """Yield the computations of a stage under 1F1B: whether a forward, and the micro-batch."""
    ahead = min(micro_batches, stages - stage - 1)
    yield from ((True, number) for number in range(ahead))
    for number in range(micro_batches):
        if number + ahead < micro_batches:
            yield True, number + ahead
        yield False, number


def split_ms(pipeline: Pipeline, lengths: Sequence[int]) -> float:
    """Return the shortest time of split backwards over several numbers and orders of micro-batches."""
    least = max(1, -(-sum(lengths) // pipeline.cap))
    numbers = {*range(least, least + 12), int(1.5 * least), 2 * least, 3 * least}
    found = [
        makespan(pipeline.stages, order, split=True)
        for number in sorted(numbers)
        for order in _orders_of(pipeline, lengths, number)
    ]
    return min(found)


def _orders_of(pipeline: Pipeline, lengths: Sequence[int], number: int) -> Iterator[list[Times]]:
    """Yield orders of at most `number` even micro-batches; none if the sequences do not fit into them."""
    packs: list[list[int]] = [[] for _ in range(number)]
    for length in sorted(lengths, reverse=True):
        fitting = [pack for pack in packs if sum(pack) + length <= pipeline.cap]
        if not fitting:
            return
        min(fitting, key=lambda pack: sum(pipeline.times(pack))).append(length)
    times = sorted((pipeline.times(pack) for pack in packs if pack), key=sum)
    yield times
    yield times[::-1]
    yield times[::2] + times[1::2][::-1]


def chunks_ms(pipeline: Pipeline, lengths: Sequence[int]) -> float:
    """Return the shortest time of sequences in chunks over several sizes of a chunk."""
    work = sum(sum(pipeline.times([length])) - pipeline.fixed for length in lengths)
    numbers = [-(-sum(lengths) // size) for size in CHUNKS]
    return min((work + number * pipeline.fixed) * (1 + (pipeline.stages - 1) / number) for number in numbers)


def pipelines_of(profile: CostProfile) -> dict[str, Pipeline]:
    """Return the pipelines of a profile by the scheme that stands for each in a search without waits."""
    found = {}
    for entry in json.loads(profile.to_json())["schemes"]:
        scheme = Scheme(entry["scheme"])
        if scheme.pp == 1 or scheme.cp > 1:
            continue
        # A scheme that leaves no memory for a micro-batch has no pipeline.
        with contextlib.suppress(InfeasibleError):
            found[stand_in(scheme)] = Pipeline(
                scheme.pp,
                profile.cap_tokens(scheme, CLUSTER),
                entry["quadratic_ms_per_token2"],
                entry["linear_ms_per_token"],
                entry["fixed_ms"],
            )
    return found


def retimed(
    plan: Plan, pipelines: dict[str, Pipeline], method: Callable[[Pipeline, Sequence[int]], float]
) -> tuple[float, float]:
    """Return the iteration of a plan whose pipelines are timed by a method, and the mean over its ranks."""
    times, ranks = [], []
    for replica in plan.replicas:
        lengths = [int(plan.lengths[member]) for pack in replica.micro_batches for member in pack]
        pipeline = pipelines.get(str(replica.scheme))
        times.append(method(pipeline, lengths) if pipeline and lengths else replica.predicted_ms)
        ranks.append(len(replica.ranks))
    return max(times), float(np.average(times, weights=ranks))


def split_as_packed(plan: Plan, profile: CostProfile) -> float:
    """Return the mean over the ranks of a plan for 1F1B, its micro-batches run with split backwards."""
    pipelines, times = pipelines_of(profile), []
    for replica in plan.replicas:
        pipeline = pipelines.get(stand_in(replica.scheme)) if replica.scheme.pp > 1 else None
        if pipeline is None:
            times.append(replica.predicted_ms)
            continue
        packs = [pipeline.times(plan.lengths[pack].tolist()) for pack in replica.micro_batches]
        both = [makespan(pipeline.stages, packs, split=split) for split in (False, True)]
        # Shares of the planned time, which knows stages of unequal speed.
        times.append(replica.predicted_ms * min(1.0, both[1] / both[0]))
    ranks = [len(replica.ranks) for replica in plan.replicas]
    return plan.iteration_ms * float(
        np.dot(times, ranks) / np.dot([r.predicted_ms for r in plan.replicas], ranks)
    )


def compare(profile: CostProfile, batches: Sequence[Batch]) -> dict[str, float]:
    """Return the mean time of each way, in ms."""
    plain = Planner(profile, CLUSTER, strategies="search")
    free = [Planner(without_bubbles(profile, slower), CLUSTER, strategies="search") for slower in SLOWER]
    pipelines = pipelines_of(profile)
    rows = []
    for batch in batches:
        planned = plain.plan(batch)
        least = planned.iteration_ms
        plans = [planner.plan(batch) for planner in free]
        row = {"1F1B": least, "no waits": plans[0].iteration_ms}
        for name, method in (("split", split_ms), ("chunks", chunks_ms)):
            found, even = zip(*(retimed(plan, pipelines, method) for plan in plans), strict=True)
            row |= {f"{name}, found": min(least, *found), f"{name}, even": min(least, *even)}
        row["split, even"] = min(row["split, even"], split_as_packed(planned, profile))
        rows.append(row)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def main() -> int:
    """Compare the ways on batches of the lengths of a file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--lengths", required=True, help="a file with one length per line, or `lognormal:MEAN,DEVIATION`"
    )
    options.add_argument("--profile", default="llama-32b-a800,cp", help="a profile, as in `hydraulis plan`")
    options.add_argument("--tokens", type=int, default=200_000, help="of a batch")
    options.add_argument("--longest", type=int, default=32_768, help="tokens; longer sequences are cut")
    options.add_argument("--batches", type=int, default=4)
    arguments = options.parse_args()
    batches = drawn(arguments.lengths, arguments.tokens, arguments.batches, arguments.longest)
    found = compare(load_profile(arguments.profile), batches)
    for name, ms in found.items():
        sys.stdout.write(f"{name:<14} {ms:>10,.0f} ms {ms / found['1F1B'] - 1:>+8.1%}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
