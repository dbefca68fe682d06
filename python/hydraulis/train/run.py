"""What a rank of a training run does, start to end."""

import sys
from dataclasses import asdict
from pathlib import Path

from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.options import json_line
from hydraulis.cli.terminal.display import TrainingDisplay
from hydraulis.config.run import RunConfig
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.train.opened_run import OpenedRun
from hydraulis.train.trainer import Trainer


def train(config: RunConfig, rank: int, stop: StopRequest, *, as_json: bool = False) -> int:
    """Run the configuration as one rank of a process group; give the exit code.

    Args:
        config: of the run.
        rank: of this process.
        stop: who asks for the end of the run.
        as_json: whether the summary is printed as JSON on one line, and all else on standard error.
    """
    with TrainingDisplay(rank, json=as_json) as display:
        run = OpenedRun.of(config, stop, display)
        if run is None:
            return EXIT_INTERRUPTED
        if run.nothing_left is not None:
            # Before anything is measured or written: the run's files stay those of its training.
            display.note(run.nothing_left)
            if rank == 0 and as_json:
                _print_account(run, None)
            return 0
        trainer = Trainer.of(run, stop, display)
        if trainer is None:
            return EXIT_INTERRUPTED
        with trainer.failure_told(display):
            completed = trainer.train(stop, display)
            checkpoint = trainer.close(completed, display)
            trained = completed > run.completed
            summary = _summary(trainer, display) if rank == 0 and trained else None
    if summary is not None:
        display.summary(summary, trainer.worker.device.type)
    if rank == 0 and as_json:
        _print_account(run, summary)
    return _ended(run.config, completed, checkpoint, display)


def _summary(trainer: Trainer, display: TrainingDisplay) -> RunSummary:
    display.doing("comparing with static strategies")
    return trainer.recorder.summary()


def _print_account(run: OpenedRun, summary: RunSummary | None) -> None:
    """Print what `--json` does: the summary, which needs a step, and how many were asked for."""
    facts = {"first_step": run.completed + 1, "steps": 0} if summary is None else asdict(summary)
    num_steps = run.config.train.num_steps
    finished = run.completed + facts["steps"] >= num_steps
    account = {"num_steps": num_steps, "finished": finished, **facts}
    sys.stdout.write(json_line(account, *(summary.files if summary else ())))


def _ended(config: RunConfig, completed: int, checkpoint: Path | None, display: TrainingDisplay) -> int:
    """Give the exit code, and say where the run was stopped if it was."""
    if completed >= config.train.num_steps:
        return 0
    display.stopped(completed, checkpoint)
    return EXIT_INTERRUPTED
