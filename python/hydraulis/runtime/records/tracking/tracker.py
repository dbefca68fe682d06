"""What a service that follows runs is asked for, and which of them a configuration names."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from hydraulis.config.output import OutputConfig
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.runtime.records.run_directory import TENSORBOARD, RunDirectory
from hydraulis.runtime.records.tracking.tensorboard import TensorBoard, require_tensorboard
from hydraulis.runtime.records.tracking.wandb import WeightsAndBiases, require_wandb

Values: TypeAlias = Mapping[str, float | str]


class Tracker(Protocol):
    """Takes a run's numbers."""

    def log(self, step: int, values: Values) -> None:
        """Take the values of a step, counted in completed iterations."""

    def close(self) -> None:
        """Say that the run has ended."""


def require_trackers(output: OutputConfig) -> None:
    """Refuse, before any work, a service whose library is missing.

    Raises:
        HydraulisError: it is not installed (code `extra_missing`).
    """
    if output.tensorboard:
        require_tensorboard()
    if output.wandb_project:
        require_wandb()


def open_trackers(config: RunConfig, directory: RunDirectory, completed: int) -> Sequence[Tracker]:
    """Open the services that a configuration names.

    Args:
        config: of the run.
        directory: of the run.
        completed: iterations before this attempt; what an earlier one logged of later ones is taken back,
            where the service can.

    Raises:
        HydraulisError: a library is not installed (code `extra_missing`), a service refuses the run
            (`tracker_unavailable`), or what it has in the run's folder cannot be written (`file_unwritable`).
    """
    trackers: list[Tracker] = []
    if config.output.tensorboard:
        trackers.append(TensorBoard(directory.path / TENSORBOARD, completed))
    if config.output.wandb_project:
        trackers.append(WeightsAndBiases(config.output.wandb_project, directory, to_dict(config)))
    return trackers
