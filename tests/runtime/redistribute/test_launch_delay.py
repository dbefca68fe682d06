"""The order of launches delays no step on the simulated timeline."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from hydraulis import Cluster, CostProfile, Link, Plan, Planner
from hydraulis._core import LayerSplit, LinkRates, Simulation, Span
from hydraulis.runtime.redistribute.launch_order import bucket_stages, startable_from

# Strategies of 64 ranks; profile, layers of its model, and GB/s between nodes.
CASES = {
    "2x<tp8,pp4>": ("llama-32b-a800", 60, 25.0),
    "1x<tp16>+6x<tp4,pp2>": ("llama-32b-a800", 60, 25.0),
    "2x<tp4,pp4>+1x<tp16>+1x<tp8,pp2>": ("llama-32b-a800", 60, 25.0),
    "4x<tp2,pp8>": ("llama-7b-a800", 32, 5.0),
    "4x<pp8>+2x<tp16>": ("llama-7b-a800", 32, 50.0),
    "2x<pp8>+3x<tp16>": ("llama-7b-a800", 32, 50.0),
}
# Those in which a stage is still busy with earlier micro-batches when a later stage is done.
DELAYING = {"2x<tp8,pp4>", "4x<tp2,pp8>", "4x<pp8>+2x<tp16>", "2x<pp8>+3x<tp16>"}
NUM_BATCHES = 4


class Reductions(NamedTuple):
    """The gradient reductions of a simulated step, by bucket.

    Attributes:
        complete: When the last gradient exists, in ms.
        startable: When the last rank may start, in ms.
        took: How long the exchange takes, in ms.
        simulated: The step.
    """

    complete: NDArray[np.float64]
    startable: NDArray[np.float64]
    took: NDArray[np.float64]
    simulated: Simulation

    def end(self, start: NDArray[np.float64]) -> float:
        """Return the end of the step if no bucket starts before its time."""
        now = 0.0
        for at, ms in zip(start[::-1], self.took[::-1], strict=True):
            now = max(now, at) + ms
        return max(now, self.simulated.iteration_ms)


def reductions(strategy: str) -> Iterator[Reductions]:
    """Simulate steps of drawn batches."""
    name, num_layers, rate = CASES[strategy]
    profile = CostProfile.preset(name)
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=rate))
    planner = Planner(profile, Cluster(64, 8), strategies=[strategy], link=link)
    rng = np.random.default_rng(0)
    for _ in range(NUM_BATCHES):
        drawn = rng.lognormal(6.2, 1.2, 200)
        plan = planner.plan(np.clip(drawn, 16, min(planner.longest_admitted, 30_000)).astype(np.int64))
        simulated = planner.simulate(plan, link=link)
        complete, startable, took = np.zeros((3, num_layers + 2))
        for span in simulated.transfer_spans:
            if span.kind == "gradients":
                took[span.layer_group] = span.end_ms - span.start_ms
        for place, timeline in enumerate(simulated.timelines):
            if timeline:
                note_replica(plan, place, timeline, LayerSplit(num_layers), complete, startable)
        yield Reductions(complete, startable, took, simulated)


def note_replica(
    plan: Plan,
    place: int,
    timeline: list[Span],
    split: LayerSplit,
    complete: NDArray[np.float64],
    startable: NDArray[np.float64],
) -> None:
    """Raise both times of each bucket to those of a replica."""
    replica = plan.replicas[place]
    stages = bucket_stages(split, replica.scheme)
    last = len(replica.micro_batches) - 1
    spans = {(one.stage, one.forward, one.micro_batch): one for one in timeline}
    for bucket, stage in enumerate(stages):
        backward = spans[stage, False, last]
        own = [one for one, other in enumerate(stages) if other == stage]
        left = (backward.end_ms - backward.start_ms) * own.index(bucket) / len(own)
        complete[bucket] = max(complete[bucket], backward.end_ms - left)
    for stage, ranks in enumerate(replica.stages):
        instructions = plan.instructions(ranks[0])
        lowest = startable_from(instructions, stages, stage, last)
        for bucket, other in enumerate(stages):
            if other <= stage:
                continue
            # An exchange: the forward before it has ended, or the backward behind it begins.
            exchange = instructions[next(n for n, one in enumerate(lowest) if one <= bucket)]
            received = exchange.receive  # type: ignore[union-attr]
            if received is None:
                startable[bucket] = max(startable[bucket], spans[stage, True, last].end_ms)
            else:
                startable[bucket] = max(startable[bucket], spans[stage, False, received].start_ms)


@pytest.mark.parametrize("strategy", CASES)
def test_no_step_ends_later_than_if_buckets_started_once_complete(strategy: str) -> None:
    num_delayed = 0
    for one in reductions(strategy):
        assert one.end(one.complete) == pytest.approx(one.simulated.step_ms, rel=1e-12)
        assert one.end(np.maximum(one.complete, one.startable)) <= one.end(one.complete) * (1 + 1e-6)
        num_delayed += int((one.startable > one.complete).sum())
    # Buckets do start later, but not those that end the step.
    assert (num_delayed > 0) == (strategy in DELAYING), num_delayed


def test_reductions_after_all_computation_would_end_a_step_later() -> None:
    for one in reductions("2x<pp8>+3x<tp16>"):
        last = np.full_like(one.complete, one.simulated.iteration_ms)
        assert one.end(last) > one.end(one.complete) * 1.01
