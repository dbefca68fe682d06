"""One training step, from plan to update. Read this file first.

**A step**, in the order of `train_step`:

1. `Worker.prepare` checks the plan and looks up this rank's stage, instructions and micro-batches.
2. `Redistribution.start_parameter_gather` starts to gather the stage's parameters from their owners.
3. `run_pipeline` runs the rank's forwards, backwards and exchanges of activations.
4. `Redistribution.finish_gradient_reduction` waits until every gradient's sum is at its owner.
5. `Worker.sum_step` adds up loss, squared gradient norm, failures, digests and votes in one all-reduce.
6. `check_step` refuses an unreadable sequence, a loss or gradient that is not finite, and ranks that differ.
7. `JumpDetector.find` compares loss and gradient norm with those of the last steps.
8. `OptimizerShard.step` clips by the global norm and runs the optimizer on this rank's shard.
9. `Worker.measure` gathers times and memory.

**The way of a gradient.** `run_pipeline` calls `torch.autograd.backward`, which accumulates into
`param.grad`, a view of `LocalShard.gradient`, and calls the hook `Redistribution._after_accumulation`. After
the last backward through a layer group `GradientReduction.accumulated` starts the all-to-all of the group's
bucket. `SummedExchanges.complete` adds the received contributions to `OptimizerShard.gradient` (a rank alone
copies them), which `ShardedOptimizer.step` reads.

**Hooks** exist only where communication overlaps computation. `Redistribution.register_hooks` registers
them on a stage when it is built: a forward pre-hook on each layer group waits for the group's parameters
before its first forward, and a hook on each trained parameter notices the last backward through the group.
Under `train.sharding` a third hook comes before the group's backward, and parameters and gradients of two
layer groups take turns in their buffers (`redistribute/sharded_redistribution.py`).

**Order of launches.** `redistribute/launch_order.py` states when a gradient reduction may start between the
pipeline's messages, so that no order of events on the devices can stop all ranks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hydraulis._core import Plan
from hydraulis.data.tokens import SequenceTokens
from hydraulis.runtime.agreement.step_sum import StepTerms, sum_step
from hydraulis.runtime.pipeline.executor import run_pipeline
from hydraulis.runtime.pipeline.forward_only import run_forward
from hydraulis.runtime.pipeline.rank_work import RankWork
from hydraulis.runtime.step_checks import check_step, raise_failure
from hydraulis.runtime.step_result import StepResult
from hydraulis.runtime.worker import Worker


def train_step(worker: Worker, plan: Plan, read: Callable[[int], SequenceTokens]) -> StepResult:
    """Gather parameters, run the pipeline, reduce gradients, and update. Collective.

    Args:
        worker: This rank's worker.
        plan: Plan of the batch, the same on every rank.
        read: Reader of a sequence's tokens, by its id in the batch; reads this rank's sequences only.

    Raises:
        InvalidInputError: The plan does not fit the worker (see `Worker.prepare`) or the sequences (see
            `PlannedSequences`), or ranks differ in plan or tokens (see `check_step`); on every rank.
        HydraulisError: The loss or the gradient's norm is not finite (see `check_step`), or a value jumped
            and `train.on_jump` is `stop` (code `training_jumped`); on every rank, without an update.
    """
    work = worker.prepare(plan, read)
    worker.start_measuring(plan)
    worker.redistribution.start_parameter_gather(plan, work)
    losses = run_pipeline(work, worker.redistribution, worker.timers, worker.memory.saved)
    worker.redistribution.finish_gradient_reduction()
    loss = add_up(work, losses, worker.device)
    total = worker.sum_step(plan, work, loss)
    check_step(worker, plan, work, loss, total)
    jump = worker.jumps.find(worker.completed + 1, total.loss, total.norm)
    update = worker.optimizer_shard.step(total.norm, is_skipped=jump is not None and worker.jumps.skips)
    return StepResult(total.loss, update, worker.measure(plan), jump)


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
    with worker.redistribution.forwards(plan, work.num_micro_batches):
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
