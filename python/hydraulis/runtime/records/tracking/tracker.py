"""The interface of tracking services, and the services that a configuration names."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from hydraulis.config.output import OutputConfig
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.runtime.records.run_directory import TENSORBOARD, RunDirectory
from hydraulis.runtime.records.tracking.tensorboard import TensorBoard, require_tensorboard
from hydraulis.runtime.records.tracking.wandb import WeightsAndBiases, require_wandb

Values: TypeAlias = Mapping[str, float | str]


class Tracker(Protocol):
    """Receives a run's metrics."""

    def log(self, step: int, values: Values) -> None:
        """Log the values after `step` completed iterations."""

    def close(self) -> None:
        """Finish the run at the service."""


def require_trackers(output: OutputConfig) -> None:
    """Check, before any work, that the libraries of the configured services are installed.

    Raises:
        HydraulisError: A library is not installed (code `extra_missing`).
    """
    if output.tensorboard:
        require_tensorboard()
    if output.wandb_project:
        require_wandb()


def open_trackers(config: RunConfig, directory: RunDirectory, completed: int) -> Sequence[Tracker]:
    """Open the services that a configuration names.

    Args:
        config: The run's configuration.
        directory: The run's folder.
        completed: Completed iterations at the start; values logged earlier for later steps are hidden if the
            service supports it.

    Raises:
        HydraulisError: A library is not installed (code `extra_missing`), a service refuses the run
            (`tracker_unavailable`), or its files in the run's folder cannot be written (`file_unwritable`).
    """
    trackers: list[Tracker] = []
    if config.output.tensorboard:
        trackers.append(TensorBoard(directory.path / TENSORBOARD, completed))
    if config.output.wandb_project:
        trackers.append(WeightsAndBiases(config.output.wandb_project, directory, to_dict(config)))
    return trackers
