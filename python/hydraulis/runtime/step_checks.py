"""Refuses a step before its update, on every rank alike; parameters and moments stay as they were."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hydraulis._core import Plan
from hydraulis.errors import HydraulisError
from hydraulis.runtime.agreement.step_digest import digest_step, raise_difference
from hydraulis.runtime.agreement.step_sum import StepSum
from hydraulis.runtime.pipeline.rank_work import RankWork
from hydraulis.runtime.ranks.every_rank import everywhere, raise_everywhere, ranks_where
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import format_count

# Most ranks that a message names.
_MAX_NAMED = 8


def check_step(worker: Worker, plan: Plan, work: RankWork, loss: Tensor, total: StepSum) -> None:
    """Check that every rank read its sequences, that loss and gradient are finite, and that ranks agree.

    Collective if a check fails.

    Args:
        worker: This rank's worker, with the rank's gradients in its local shard.
        plan: Plan of the step.
        work: This rank's part of the plan, carried out.
        loss: This rank's part of the mean loss, a float64 scalar.
        total: Sums over all ranks.

    Raises:
        HydraulisError: A rank could not read a sequence (see `PlannedSequences`), or the loss or the norm of
            the gradient is not finite (codes `loss_not_finite`, `gradient_not_finite`).
        InvalidInputError: Ranks differ in plan or tokens (code `ranks_differ`).
    """
    raise_failure(work, total)
    step, gradient = worker.completed + 1, worker.local_shard.gradient
    check_loss(total.loss, step, lambda: _name_ranks(bool(torch.isfinite(loss))))
    if not total.is_same:
        raise_difference(plan, digest_step(plan, work.sequences.digests))
    check_norm(total.norm, step, lambda: _name_ranks(bool(torch.isfinite(gradient).all())))


def raise_failure(work: RankWork, total: StepSum) -> None:
    """Raise the error of the lowest rank that could not read a sequence, on every rank.

    Raises:
        HydraulisError: The error of `PlannedSequences`.
    """
    if total.num_failed:
        raise_everywhere(work.sequences.error)


def check_loss(loss: float, step: int, culprits: Callable[[], str] = lambda: "") -> None:
    """Refuse a loss that is not finite; every rank has the same loss.

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


def check_norm(norm: float, step: int, culprits: Callable[[], str] = lambda: "") -> None:
    """Refuse a gradient whose norm is not finite; every rank has the same norm.

    Args:
        norm: Norm of the whole gradient.
        step: Number of the step, from 1.
        culprits: Function that names the ranks whose gradients are not finite, as `check_loss` takes it.

    Raises:
        HydraulisError: The norm is infinite or no number (code `gradient_not_finite`).
    """
    if not math.isfinite(norm):
        message = (
            f"the gradient's norm of step {step} is {norm}{culprits()}: training diverged; lower "
            "optimizer.learning_rate"
        )
        raise everywhere(HydraulisError(message, code="gradient_not_finite"))


def _name_ranks(is_finite: bool) -> str:  # noqa: FBT001 - one value of each rank
    """Name the ranks whose own part is not finite, as the end of a message. Collective."""
    ranks = ranks_where(not is_finite)
    if not ranks:
        return ""
    return f", from {format_count(len(ranks), 'rank')} ({', '.join(map(str, ranks[:_MAX_NAMED]))})"
