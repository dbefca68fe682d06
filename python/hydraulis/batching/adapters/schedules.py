"""The micro-batches of one step for reinforcement learning and for Megatron's data schedules.

`plan_schedule` is the common part: samples, or groups of them, onto equal ranks, where a sample longer than
the cap is in a micro-batch of its own.
"""

from collections.abc import Sequence

import numpy as np

from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.step_planner import StepItems, StepPlanner
from hydraulis.errors import InvalidInputError


def plan_schedule(
    lengths: Sequence[int],
    *,
    ranks: int,
    cap_tokens: int,
    cost: object,
    multiple_of: int = 1,
    most_samples: int | None = None,
) -> list[list[list[int]]]:
    """Plan one step with the same number of micro-batches for every rank and none without a sample.

    Args:
        lengths: Tokens of each sample.
        ranks: Number of data-parallel ranks.
        cap_tokens: Most tokens of a micro-batch; a longer sample is alone in one.
        cost: Time of a sample, as `SequenceCost.of` takes it.
        multiple_of: Divisor of the number of micro-batches.
        most_samples: Most samples of a micro-batch; None for no limit.

    Returns:
        Samples of each micro-batch of each rank.

    Raises:
        InfeasibleError: There are too few samples for the micro-batches (code `batch_unplaceable`).
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    price = SequenceCost.of(cost)
    planner = StepPlanner(
        ranks=ranks,
        cap_tokens=cap_tokens,
        cost=price,
        multiple_of=multiple_of,
        cap_extra_tokens=most_samples,
    )
    # A sample of as many tokens as the cap has no neighbour.
    times = price.times(tokens) if tokens.max() > cap_tokens else None
    # Each sample is one extra token, so their cap limits the number of samples.
    ones = None if most_samples is None else np.ones_like(tokens)
    plan = planner.plan(StepItems(np.arange(len(tokens)), np.minimum(tokens, cap_tokens), times, ones))
    return [[part.tolist() for part in rank] for rank in plan.micro_batches]


def whole_steps(rollout_indices: Sequence[int], size: int) -> list[list[int]]:
    """Return the samples of each step of `size` rollouts, without the rollouts after the last full step.

    Args:
        rollout_indices: Rollout of each sample.
        size: Rollouts of a step.

    Raises:
        InvalidInputError: There are fewer rollouts than one step has (code `argument_invalid`).
    """
    rollouts: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollout_indices):
        rollouts.setdefault(rollout, []).append(sample)
    if len(rollouts) < size:
        message = f"global_batch_size is {size}, and there are {len(rollouts)} rollouts; lower it to these"
        raise InvalidInputError(message, code="argument_invalid")
    members = list(rollouts.values())
    starts = range(0, len(members) - size + 1, size)
    return [[sample for one in members[start : start + size] for sample in one] for start in starts]


def partition(weights: Sequence[float], parts: int, *, equal_size: bool) -> list[list[int]]:
    """Divide items into parts of nearly equal weight, none empty.

    Args:
        weights: Weight of each item.
        parts: Number of parts, at most the items.
        equal_size: Whether every part has the same number of items; their number is a multiple of `parts`.

    Returns:
        Items of each part, in ascending order.
    """
    times = np.asarray(weights, dtype=np.float64)
    # Each item counts as one token, so the cap admits every number of items.
    planner = StepPlanner(
        ranks=parts,
        cap_tokens=len(times),
        cost=SequenceCost(1, 0),
        barrier="step",
        micro_batches=1,
        equal_sequences=equal_size,
    )
    plan = planner.plan(StepItems(np.arange(len(times)), np.ones(len(times), dtype=np.int64), times))
    return [sorted(rank[0].tolist()) for rank in plan.micro_batches]
