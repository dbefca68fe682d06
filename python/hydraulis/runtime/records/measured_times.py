"""The time of each micro-batch and the balance of computation between ranks, from measured timelines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hydraulis._core import Plan, Replica, Span

# Milliseconds by replica, micro-batch and stage, forward plus backward.
MicroBatchTimes = list[list[list[float]]]


def micro_batch_times(plan: Plan, timelines: Sequence[Sequence[Span]]) -> MicroBatchTimes:
    """Sum the spans of measured timelines by micro-batch and stage.

    Args:
        plan: Plan of the iteration.
        timelines: Measured timelines of the replicas, in the plan's order.

    Returns:
        Milliseconds by replica, micro-batch and stage.
    """
    times = [
        [[0.0] * replica.scheme.pp for _ in replica.micro_batches]
        for replica, _ in zip(plan.replicas, timelines, strict=True)
    ]
    for by_micro_batch, timeline in zip(times, timelines, strict=True):
        for span in timeline:
            by_micro_batch[span.micro_batch][span.stage] += span.end_ms - span.start_ms
    return times


def stage_rates(plan: Plan) -> list[list[float]]:
    """Return the rate of each stage of each replica: the least of its ranks, by which the plan counts."""
    rates = plan.cluster.rates
    if rates is None:
        return [[1.0] * replica.scheme.pp for replica in plan.replicas]
    return [[min(rates[rank] for rank in ranks) for ranks in replica.stages] for replica in plan.replicas]


class ReplicaTimes(NamedTuple):
    """The times of a replica's micro-batches, as its device's ranks of full rate would take them.

    Attributes:
        replica: Replica of the plan.
        device: Number of the device in the plan's cost profile whose times it takes.
        times: Milliseconds by micro-batch and stage.
    """

    replica: Replica
    device: int
    times: list[list[float]]


def at_full_rate(plan: Plan, times: MicroBatchTimes, rates_of_devices: Sequence[float]) -> list[ReplicaTimes]:
    """Return the times that ranks without slowdown would take, by the plan's rates.

    Replicas on several devices are left out: their times are of no single device.

    Args:
        plan: Plan of the iteration.
        times: Measured times of its micro-batches.
        rates_of_devices: Full rate of each device.
    """
    found = []
    devices = plan.cluster.devices
    for replica, by_micro_batch, rates in zip(plan.replicas, times, stage_rates(plan), strict=True):
        own = {devices[rank] for rank in replica.ranks} if devices else {0}
        if len(own) > 1:
            continue
        (device,) = own
        shares = [rate / rates_of_devices[device] for rate in rates]
        full = [[ms * share for ms, share in zip(stages, shares, strict=True)] for stages in by_micro_batch]
        found.append(ReplicaTimes(replica, device, full))
    return found


@dataclass(frozen=True, slots=True)
class RankBalance:
    """The balance of computation between ranks, as ratios without a unit.

    Attributes:
        bubble: Share of the time, from the start to the end of their own replica, that ranks with work spend
            waiting for other stages.
        imbalance: Computation time of the busiest rank over the mean of all ranks, including ranks without
            work; 1 if all ranks compute equally long.
    """

    bubble: float
    imbalance: float


def rank_balance(plan: Plan, timelines: Sequence[Sequence[Span]]) -> RankBalance:
    """Compute the balance of an iteration; each rank of a stage counts the time of the stage's slowest rank.

    Args:
        plan: Plan of the iteration.
        timelines: Measured timelines of the replicas, in the plan's order; empty timelines give zeros.
    """
    busy: list[tuple[float, int]] = []
    available = 0.0
    for replica, timeline in zip(plan.replicas, timelines, strict=False):
        available += max((span.end_ms for span in timeline), default=0.0) * replica.scheme.ranks
        for stage, ranks in enumerate(replica.stages):
            spans = [span.end_ms - span.start_ms for span in timeline if span.stage == stage]
            busy.append((sum(spans), len(ranks)))
    total = sum(ms * ranks for ms, ranks in busy)
    if total == 0.0:
        return RankBalance(0.0, 0.0)
    return RankBalance(
        bubble=1.0 - total / available,
        imbalance=max(ms for ms, _ in busy) * plan.cluster.gpus / total,
    )
