"""One training step, from plan to update. Read this file first.

**A step**, in the order of `train_step`:

1. `Worker.prepare` checks the plan and looks up this rank's stage, instructions and micro-batches.
2. `Redistribution.start_parameter_gather` starts to gather the stage's parameters from their owners.
3. `run_pipeline` runs the rank's forwards, backwards and exchanges of activations.
4. `Redistribution.finish_gradient_reduction` waits until every gradient's sum is at its owner.
5. `Worker.sum_step` adds up loss, squared gradient norm, failures, digests and votes in one all-reduce.
6. `raise_failure`, `check_finite` and `raise_difference` refuse an unreadable sequence, a loss that is not
   finite, and ranks that differ.
7. `OptimizerShard.step` clips by the global norm and runs the optimizer on this rank's shard.
8. `Worker.measure` gathers times and memory.

**The way of a gradient.** `run_pipeline` calls `torch.autograd.backward`, which accumulates into
`param.grad`, a view of `LocalShard.gradient`. After the last backward through a layer group
`GradientReduction.accumulated` starts the all-to-all of the group's bucket. `SummedExchanges.complete` adds
the received contributions to `OptimizerShard.gradient`, which `ShardedOptimizer.step` reads.

**Hooks** exist only where communication overlaps computation. `Redistribution.register_hooks` registers both
kinds on a stage when it is built: a forward pre-hook on each layer group waits for the group's parameters
before its first forward, and a hook on each trained parameter notices the last backward through the group.

**Order of launches.** `redistribute/launch_order.py` states when a gradient reduction may start between the
pipeline's messages, so that no order of events on the devices can stop all ranks.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hydraulis._core import Plan
from hydraulis.data.tokens import SequenceTokens
from hydraulis.errors import HydraulisError
from hydraulis.runtime.agreement.step_digest import digest_step, raise_difference
from hydraulis.runtime.agreement.step_sum import StepSum, StepTerms, sum_step
from hydraulis.runtime.pipeline.executor import run_pipeline
from hydraulis.runtime.pipeline.forward_only import run_forward
from hydraulis.runtime.pipeline.rank_work import RankWork
from hydraulis.runtime.ranks.every_rank import everywhere, raise_everywhere, ranks_where
from hydraulis.runtime.state.sharded_optimizer import UpdateCheck
from hydraulis.runtime.step_result import StepResult
from hydraulis.runtime.worker import Worker
from hydraulis.text.numbers import format_count

# Most ranks that a message names.
_MAX_NAMED = 8


def train_step(worker: Worker, plan: Plan, read: Callable[[int], SequenceTokens]) -> StepResult:
    """Gather parameters, run the pipeline, reduce gradients, and update. Collective.

    Args:
        worker: This rank's worker.
        plan: Plan of the batch, the same on every rank.
        read: Reader of a sequence's tokens, by its id in the batch; reads this rank's sequences only.

    Raises:
        InvalidInputError: The plan does not fit the worker (see `Worker.prepare`) or the sequences (see
            `PlannedSequences`); on every rank.
        HydraulisError: The loss or the gradient's norm is not finite (codes `loss_not_finite`,
            `gradient_not_finite`), ranks differ in plan or tokens (`ranks_differ`), or a value jumped and
            `train.on_jump` is `stop` (`training_jumped`); on every rank, without an update.
    """
    work = worker.prepare(plan, read)
    worker.start_measuring(plan)
    redistribution = worker.redistribution
    redistribution.start_parameter_gather(plan, work)
    losses = run_pipeline(
        work,
        redistribution.finish_parameter_gather,
        redistribution.launched,
        worker.timers,
        worker.memory.saved,
    )
    redistribution.finish_gradient_reduction()
    own, digest = add_up(work, losses, worker.device), digest_step(plan, work.sequences.digests)
    total = worker.sum_step(work, digest, own)
    step = worker.optimizer_shard.optimizer.num_steps + 1
    raise_failure(work, total)
    check_finite(total.loss, step, lambda: _name_ranks(bool(torch.isfinite(own))))
    if not total.is_same:
        raise_difference(plan, digest)
    gradient = worker.local_shard.gradient
    check = UpdateCheck(
        culprits=lambda: _name_ranks(bool(torch.isfinite(gradient).all())),
        accepts=partial(worker.jumps.accepts, step, total.loss),
    )
    update = worker.optimizer_shard.step(total.norm, check)
    return StepResult(total.loss, update, worker.measure(plan), jump=worker.jumps.found)


def evaluate(worker: Worker, plan: Plan, read: Callable[[int], SequenceTokens]) -> float:
    """Return the batch's mean loss over its target tokens, without a backward pass or an update. Collective.

    Args:
        worker: This rank's worker.
        plan: Plan of the batch, the same on every rank; its backward passes are left out.
        read: Reader of a sequence's tokens, by its id in the batch.

    Raises:
        InvalidInputError: As `train_step`.
    """
    work = worker.prepare(plan, read)
    worker.redistribution.gather_parameters(plan)
    own = add_up(work, run_forward(work), worker.device)
    total = sum_step(
        StepTerms(own, square=torch.zeros_like(own), has_failed=work.sequences.error is not None)
    )
    raise_failure(work, total)
    return total.loss


def add_up(work: RankWork, losses: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return this rank's part of the mean loss, a float64 scalar on the device; the host does not wait.

    Args:
        work: This rank's part of the plan.
        losses: Terms of the mean loss, one for each micro-batch of a last stage.
        device: Device of this rank.
    """
    # The tensor ranks of a last stage have the same terms: the first of them counts.
    if work.position is None or work.position.tensor_rank != 0 or not losses:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([loss.detach() for loss in losses]).double().sum()


def raise_failure(work: RankWork, total: StepSum) -> None:
    """Raise the error of the lowest rank that could not read a sequence, on every rank.

    Raises:
        HydraulisError: The error of `PlannedSequences`.
    """
    if total.num_failed:
        raise_everywhere(work.sequences.error)


def check_finite(loss: float, step: int, culprits: Callable[[], str] = lambda: "") -> None:
    """Refuse a loss that is not finite before it reaches the master parameters; every rank has the same loss.

    Args:
        loss: Mean loss of the batch.
        step: Number of the step, from 1.
        culprits: Function that names the ranks whose loss is not finite, as the end of a message. Collective.

    Raises:
        HydraulisError: The loss is infinite or no number (code `loss_not_finite`).
    """
    if not math.isfinite(loss):
        why = (
            "before any update: initial parameters are not finite, or too large for train.dtype; correct the "
            "files of model.path"
            if step == 1
            else "training diverged; lower optimizer.learning_rate"
        )
        message = f"the loss of step {step} is {loss}{culprits()}: {why}"
        raise everywhere(HydraulisError(message, code="loss_not_finite"))


def _name_ranks(is_finite: bool) -> str:  # noqa: FBT001 - one value of each rank
    """Name the ranks whose own part is not finite, as the end of a message. Collective."""
    ranks = ranks_where(not is_finite)
    if not ranks:
        return ""
    return f", from {format_count(len(ranks), 'rank')} ({', '.join(map(str, ranks[:_MAX_NAMED]))})"
