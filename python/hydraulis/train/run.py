"""A training run on one rank, from its configuration to its result."""

from dataclasses import dataclass

from hydraulis.config.run import RunConfig
from hydraulis.runtime.agreement.comparison import check_same
from hydraulis.runtime.agreement.run_facts import REMEDY, run_facts
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.train.observer import TrainingObserver
from hydraulis.train.opened_run import OpenedRun
from hydraulis.train.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Outcome of a training run.

    Attributes:
        first_step: Number of this run's first step, counted from 1; above 1 for a resumed run.
        completed: Number of completed steps, including those of resumed runs.
        num_steps: Number of steps of the whole run.
        summary: Summary of this run's steps on rank 0; None on other ranks, and if no step was trained.
    """

    first_step: int
    completed: int
    num_steps: int
    summary: RunSummary | None

    @property
    def is_finished(self) -> bool:
        """Whether all steps are completed."""
        return self.completed >= self.num_steps


def train(
    config: RunConfig, stop: StopRequest, observer: TrainingObserver | None = None
) -> TrainingResult | None:
    """Train as one rank of the current process group. Collective.

    Args:
        config: Configuration of the run.
        stop: Request to end the run after the current step.
        observer: Receiver of the run's events; None for none.

    Returns:
        The result; None if the run was stopped before its first step.

    Raises:
        HydraulisError: The configuration, the data or a batch is refused, the run diverged, or another rank
            was lost (code `lost_rank`).
    """
    observer = observer or TrainingObserver()
    check_same(run_facts(config), REMEDY)
    run = OpenedRun.open(config, stop, observer)
    if run is None:
        return None
    if run.nothing_left is not None:
        # Before any measurement or write: the files of the run stay those of its training.
        observer.message(run.nothing_left)
        return _result(run, run.completed, None)
    trainer = Trainer.build(run, stop, observer)
    if trainer is None:
        return None
    with trainer.reporting_failure():
        trainer.train()
        checkpoint = trainer.close()
        summary = trainer.summary()
    if summary is not None:
        observer.summary(summary, trainer.worker.device.type)
    result = _result(run, trainer.completed, summary)
    if not result.is_finished:
        observer.stopped(trainer.progress(checkpoint))
    return result


def _result(run: OpenedRun, completed: int, summary: RunSummary | None) -> TrainingResult:
    return TrainingResult(
        first_step=run.completed + 1,
        completed=completed,
        num_steps=run.config.train.num_steps,
        summary=summary,
    )
