"""The events that a training run reports: their receiver, and the progress they carry."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.recorder import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Position of a run that ended early, and the checkpoint to resume from.

    Attributes:
        completed: Number of completed steps, including those of resumed runs.
        num_steps: Number of steps of the whole run.
        checkpoint: Newest complete checkpoint; None if there is none.
        checkpoint_every: Steps between checkpoints (`checkpoint.every_steps`); None for one at the end only.
        run: The run's folder.
        copies: Folder in the memory of the nodes with whole copies of the state; empty without any.
    """

    completed: int
    num_steps: int
    checkpoint: Path | None
    checkpoint_every: int | None
    run: Path
    copies: str = ""

    def after_stop(self) -> str:
        """Describe the position of a run that was asked to stop."""
        position = f"stopped after step {self.completed} of {self.num_steps}"
        if self.checkpoint is None:
            return f"{position}; this run trained no step"
        return f"{position}; checkpoint: {_resume_hint(self.checkpoint)}"

    def after_failure(self) -> str:
        """Describe the position of a run that failed."""
        position = f"failed after step {self.completed} of {self.num_steps}"
        if self.copies:
            saved = "no checkpoint is complete"
            if self.checkpoint is not None:
                saved = f"newest checkpoint: {self.checkpoint}"
            return (
                f"{position}; copies of the state are in {self.copies} on the nodes, until another run with "
                f"copies removes them; {saved}; to resume: the same command with {_resume_option(self.run)}"
            )
        if self.checkpoint is not None:
            return f"{position}; newest checkpoint: {_resume_hint(self.checkpoint)}"
        if self.checkpoint_every is None:
            why = "set checkpoint.every_steps to write some during training"
        else:
            why = f"none of checkpoint.every_steps = {self.checkpoint_every} was written in full"
        return f"{position}; no checkpoint is complete: {why}"


class TrainingObserver:
    """Receiver of a run's events; this one ignores them all, and subclasses override those they handle.

    Each rank has one; rank 0's alone receives every event.
    """

    def status(self, activity: str) -> None:
        """Handle the start of an activity before the first step or after the last one."""

    def message(self, text: str) -> None:
        """Handle a message about the run."""

    def indexing(self, share: float) -> None:
        """Handle progress of data indexing, from 0 to 1."""

    def data(self, facts: Mapping[str, Any]) -> None:
        """Handle the statistics of the training data, as `Dataset.describe` returns them."""

    def num_steps(self, num_steps: int) -> None:
        """Handle the number of steps of the whole run, before its first step."""

    def measuring(self, share: float) -> None:
        """Handle progress of the cost measurement, from 0 to 1."""

    def step(self, metrics: StepMetrics) -> None:
        """Handle a completed step."""

    def summary(self, summary: RunSummary, device: str) -> None:
        """Handle the summary of a run whose steps ran on devices of this type, such as `cuda`."""

    def stopped(self, progress: RunProgress) -> None:
        """Handle the end of a run that was asked to stop; this is its last event."""

    def failed(self, progress: RunProgress) -> None:
        """Handle the failure of a run; its error is raised afterwards."""


def _resume_hint(checkpoint: Path) -> str:
    """Name a checkpoint and the option that resumes from it."""
    return f"{checkpoint}; to resume: the same command with {_resume_option(checkpoint.parents[1])}"


def _resume_option(run: Path) -> str:
    return f"--resume {shlex.quote(str(run))}"
