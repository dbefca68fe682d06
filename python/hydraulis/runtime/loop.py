"""The training loop: draw a batch, plan it, train it, and record the iteration."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch.distributed as dist

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.model.flops import Utilisation
from hydraulis.runtime.batch import plan_unless_stopped
from hydraulis.runtime.iteration import Iteration, WallTimes, planned_bytes, step_metrics
from hydraulis.runtime.memory.out_of_memory import naming_out_of_memory
from hydraulis.runtime.planning.plans_ahead import PlannedStep, PlansAhead
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.planning.step_batches import FIRST_STEP, StepBatches, StepPosition
from hydraulis.runtime.ranks.shared_devices import ranks_per_device
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker

# Question to each rank (see `Votes`).
_STOP = "stop"


def iterations(
    config: RunConfig,
    data: SequenceSource,
    worker: Worker,
    planner: RunPlanner,
    stop: StopRequest,
    position: StepPosition = FIRST_STEP,
) -> Iterator[Iteration]:
    """Train, and yield each iteration after its step. Collective: every rank iterates.

    A request to stop takes effect before the next step, on all ranks alike: rank 0's reaches them in place of
    the next plan, another rank's in the all-reduce of the step in which it arrived, or of the following one.

    Steps are counted from 1. For the same data, a step's batch depends only on the seed and the step's
    number; with `planner.lookahead` also on the group's other batches and the profile. Its plan depends on
    the batch and the profile; with `planner.max_strategies` also on earlier strategies, and with
    `planner.recalibrate`, `planner.slow_rank` and `planner.slow_link` on the measurements of the steps up to
    the last but one.
    While a step runs, rank 0 plans the next one.

    Args:
        config: Configuration of the run.
        data: Training data, the same on every rank; a rank reads the tokens of its own sequences only.
        worker: This rank's worker.
        planner: Planner of the batches; asked on rank 0 only. It learns before each request for a plan,
            while no plan is made.
        stop: Request to stop after the current step.
        position: Position of the run that this one continues.

    Yields:
        Each iteration; its measured times and timelines are on rank 0 only.

    Raises:
        HydraulisError: The planner refuses a batch, a plan breaks a promise (code `plan_broken`), or a step
            fails (see `train_step`); on every rank.
    """
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    utilisation = Utilisation(
        config.model, dist.get_world_size(), config.output.peak_tflops, ranks_per_device(worker.device)
    )

    def request(step: int) -> Callable[[], PlannedStep]:
        planner.learn()
        return batches.request(step, planner)

    worker.votes.ask(_STOP, stop.is_requested)
    steps, rank = range(position.completed + 1, config.train.num_steps + 1), dist.get_rank()
    batches = StepBatches(data, sampler, steps, config.planner, position.group)
    # Frozen garbage of the setup would keep its tensors for the whole run.
    gc.collect()
    with PlansAhead(request, steps) as plans, frozen_objects():
        if stop.agreed():
            return
        for step in steps:
            start = time.perf_counter()
            plan = plan_unless_stopped(partial(plans.take, step), stop.is_requested)
            if plan is None:
                return
            taken = batches.take(step)
            with naming_out_of_memory(worker, rank, partial(_planned_bytes, planner, plan, rank)):
                result = train_step(worker, plan, taken.batch.read)
            times = WallTimes(
                wall_ms=1e3 * (time.perf_counter() - start),
                plan_ms=plans.plan_ms,
                plan_wait_ms=plans.waited_ms,
            )
            yield Iteration(
                plan=plan,
                result=result,
                metrics=step_metrics(taken, plan, result, times, planner, utilisation),
                group=taken.group,
                num_dropped=sampler.num_dropped(step),
                is_profiled=step in config.train.profile_steps,
            )
            if worker.votes.count(_STOP):
                return


def _planned_bytes(planner: RunPlanner, plan: Plan, rank: int) -> int | None:
    return planned_bytes(planner, plan)[rank]


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Keep the objects that exist now out of garbage collection while the context lasts.

    The lists of a large plan start full collections, which visit the objects of all loaded modules and take
    0.35 s of CPU time in each step on 16,384 ranks (benches/scale.py).

    Where objects are frozen already, as in a rank that the fork server started, the context changes nothing:
    `gc.unfreeze` would thaw those too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
