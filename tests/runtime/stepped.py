"""A step of an optimizer shard alone, and the votes of its ranks, for tests without a whole training step."""

import torch

from hydraulis.runtime.agreement.step_sum import StepTerms, Votes, sum_step
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.sharded_optimizer import Update


def step(shard: OptimizerShard) -> Update:
    """Add up the ranks' squares, and update."""
    square = shard.optimizer.gradient_square()
    return shard.step(sum_step(StepTerms(torch.zeros_like(square), square)).norm)


def tally(votes: Votes) -> None:
    """Count the votes as a training step does."""
    zero = torch.zeros(())
    votes.take(sum_step(StepTerms(zero, zero, votes=votes.cast())).votes)
