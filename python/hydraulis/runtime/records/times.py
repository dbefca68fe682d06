"""Measured time of each micro-batch of an iteration, used to check predictions and refine profiles."""

from collections.abc import Sequence

from hydraulis._core import Plan, Span

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
