"""The training loop: a batch, its plan, one iteration, again."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.data.tokens import SequenceTokens
from hydraulis.errors import HydraulisError
from hydraulis.planner.batch_planner import BatchPlanner
from hydraulis.runtime.planning.plans_ahead import PlannedStep, PlansAhead
from hydraulis.runtime.ranks.every_rank import everywhere
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.rank_balance import rank_balance
from hydraulis.runtime.records.utilisation import Utilisation
from hydraulis.runtime.state.adamw import Update
from hydraulis.runtime.step_result import Outcome
from hydraulis.runtime.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What happened in one iteration.

    Attributes:
        plan: that was carried out.
        outcome: of it.
        metrics: of it.
        num_dropped: sequences that filled no batch at the ends of the epochs before the next batch.
    """

    plan: Plan
    outcome: Outcome
    metrics: StepMetrics
    num_dropped: int = 0


def iterations(
    config: RunConfig,
    data: SequenceSource,
    worker: Worker,
    planner: BatchPlanner,
    stop: StopRequest,
    completed: int = 0,
) -> Iterator[Iteration]:
    """Train, and give each iteration after its step. Collective: every rank iterates.

    Steps are counted from 1: after step `i` so many are done. Of the same data its batch depends on the seed
    and `i` alone. Its plan depends on the batch and the profile; with `planner.max_strategies` also on the
    strategies used before, and with `planner.recalibrate` on what was measured until it is made. Neither
    needs the iteration that runs: the next one is planned meanwhile.

    Args:
        config: of the run.
        data: the same on every rank; each reads only what plans give it.
        worker: of this rank.
        planner: asked on rank 0 alone.
        stop: ends the loop after the step at hand.
        completed: how many steps are done already.

    Yields:
        Each iteration; measured times and timelines are known on rank 0 alone.

    Raises:
        HydraulisError: the planner refuses a batch, a plan breaks a promise (code `plan_broken`), or the loss
            or the gradient's norm is not a finite number (codes `loss_not_finite`, `gradient_not_finite`); on
            every rank.
    """
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    utilisation = Utilisation(config.model, dist.get_world_size(), config.output.peak_tflops)

    def request(step: int) -> Callable[[], PlannedStep]:
        documents = sampler.batch(step - 1).sequences
        return PlanRequest(planner, data.lengths[documents], data.target_counts[documents])

    steps = range(completed + 1, config.train.num_steps + 1)
    with PlansAhead(request, steps) as plans:
        for step in steps:
            if stop.agreed():
                return
            start = time.perf_counter()
            taken = TakenPlan(plans, step)
            plan = Plan.from_json(from_rank_zero(taken))
            documents = sampler.batch(step - 1).sequences
            outcome = worker.accumulate(plan, TokenReader(data, documents))
            # Before the step: what made the loss not finite must not get into the master parameters.
            check_loss(step, outcome.loss)
            update = worker.home.step()
            # What is done between iterations, such as learning from their times, may change the planner.
            plans.settle()
            wall_ms = 1e3 * (time.perf_counter() - start)
            metrics = _metrics(step, plan, outcome, update, wall_ms=wall_ms, taken=taken)
            mfu = utilisation.of(metrics.tokens, metrics.squares, wall_ms)
            # Rank 0 alone has a planner and knows peaks; without one nothing would stand beside them.
            known = any(outcome.peak_bytes)
            planned = planned_bytes(planner, plan) if known else (None,) * len(outcome.peak_bytes)
            metrics = dataclasses.replace(metrics, mfu=mfu, rank_planned_bytes=planned)
            yield Iteration(
                plan=plan, outcome=outcome, metrics=metrics, num_dropped=sampler.num_dropped(step)
            )


@dataclass(frozen=True, slots=True)
class TokenReader:
    """Reads the sequences of one batch, by their ids."""

    data: SequenceSource
    documents: npt.NDArray[np.int64]

    def __call__(self, sequence: int) -> SequenceTokens:
        """Return the tokens of a sequence."""
        return self.data.read(int(self.documents[sequence]))


@dataclass(frozen=True, slots=True, eq=False)
class PlanRequest:
    """A batch that is to be planned.

    Attributes:
        planner: asked for the plan.
        lengths: tokens of the batch's sequences.
        targets: target counts of them.
    """

    planner: BatchPlanner
    lengths: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]

    def __call__(self) -> PlannedStep:
        """Plan the batch, and check the plan.

        Raises:
            HydraulisError: the batch is refused, or the plan breaks a promise (code `plan_broken`).
        """
        start = time.perf_counter()
        plan = self.planner.plan(self.lengths, self.targets)
        plan_ms = 1e3 * (time.perf_counter() - start)
        broken = self.planner.check(plan, self.lengths, self.targets)
        if broken:
            message = f"the plan breaks its promises, which is a defect of the planner: {'; '.join(broken)}"
            raise HydraulisError(message, code="plan_broken")
        return PlannedStep(plan.to_json(), plan_ms)

    def text(self) -> str:
        """Plan the batch, and give the plan's JSON; raises as a call does."""
        return self().text


class TakenPlan:
    """Takes a step's plan on rank 0, and remembers what it took; elsewhere both times stay 0."""

    def __init__(self, plans: PlansAhead, step: int) -> None:
        self._plans = plans
        self._step = step
        self.plan_ms = self.waited_ms = 0.0

    def __call__(self) -> str:
        """Give the plan's JSON; raises what planning raised."""
        planned = self._plans.take(self._step)
        self.plan_ms, self.waited_ms = planned.plan_ms, self._plans.waited_ms
        return planned.text


def _metrics(
    step: int, plan: Plan, outcome: Outcome, update: Update, *, wall_ms: float, taken: TakenPlan
) -> StepMetrics:
    balance = rank_balance(plan, outcome.timelines)
    return StepMetrics(
        step=step,
        loss=outcome.loss,
        gradient_norm=update.gradient_norm,
        learning_rate=update.learning_rate,
        sequences=len(plan.lengths),
        tokens=int(plan.lengths.sum()),
        longest=int(plan.lengths.max()),
        squares=int((plan.lengths**2).sum()),
        strategy=plan.strategy,
        planned_ms=plan.iteration_ms,
        lower_bound_ms=plan.lower_bound_ms,
        measured_ms=outcome.measured_ms,
        wall_ms=wall_ms,
        plan_ms=taken.plan_ms,
        plan_wait_ms=taken.waited_ms,
        transfer_ms=outcome.transfer_ms,
        groups_ms=outcome.groups_ms,
        memory_bytes=outcome.memory_bytes,
        rank_planned_bytes=(),
        rank_peak_bytes=outcome.peak_bytes,
        tokens_per_s=1e3 * float(plan.lengths.sum()) / wall_ms,
        mfu=None,
        bubble=balance.bubble,
        imbalance=balance.imbalance,
        replica_planned_ms=tuple(replica.predicted_ms for replica in plan.replicas),
        replica_measured_ms=outcome.replica_ms,
    )


def planned_bytes(planner: BatchPlanner, plan: Plan) -> tuple[int | None, ...]:
    """Give what each rank is predicted to hold at its fullest moment; None without work."""
    by_rank = planner.rank_memory(plan)
    return tuple(None if memory is None else round(memory.total_bytes) for memory in by_rank)


def check_loss(step: int, loss: float) -> None:
    """Raise `HydraulisError` (code `loss_not_finite`) if training has diverged at a step.

    All ranks have the same loss, so all do.
    """
    if not math.isfinite(loss):
        why = (
            "before any update: the initial parameters are not finite, or too large for train.dtype; "
            "correct the files of model.path"
            if step == 1
            else "training diverged; lower optimizer.learning_rate"
        )
        message = f"the loss of step {step} is {loss}: {why}"
        raise everywhere(HydraulisError(message, code="loss_not_finite"))
