"""Tracking services of a run: TensorBoard, and Weights & Biases, behind one interface.

The library of Weights & Biases chooses the destination by its own settings: WANDB_MODE=offline keeps the data
in the run's folder, for `wandb sync`.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeAlias

from hydraulis.config.output import OutputConfig
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.errors import HydraulisError
from hydraulis.extras import import_extra
from hydraulis.runtime.records.run_directory import TENSORBOARD, WANDB_ID, RunDirectory, writing


class TensorBoard:
    """Writes event files, which `tensorboard --logdir` shows.

    Args:
        folder: Folder of the files; it is created if it is absent.
        completed: Completed iterations at the start; values logged earlier for later steps are hidden.

    Raises:
        HydraulisError: Tensorboard is not installed (code `extra_missing`), or its files cannot be created
            (`file_unwritable`).
    """

    def __init__(self, folder: Path, completed: int) -> None:
        hidden_from = completed + 1 if completed else None
        library = require_tensorboard()
        self._folder = folder
        with writing(folder):
            self._writer = library.SummaryWriter(str(folder), purge_step=hidden_from)

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Append a scalar for each number, and a text for each string.

        Raises:
            HydraulisError: The values cannot be written (code `file_unwritable`).
        """
        with writing(self._folder):
            for name, value in values.items():
                if isinstance(value, str):
                    self._writer.add_text(name, value, step)
                else:
                    self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self) -> None:
        """Close the files.

        Raises:
            HydraulisError: The files cannot be written (code `file_unwritable`).
        """
        with writing(self._folder):
            self._writer.close()


def require_tensorboard() -> ModuleType:
    """Import torch's writer of event files.

    Raises:
        HydraulisError: Tensorboard is not installed (code `extra_missing`).
    """
    import_extra("tensorboard", "output.tensorboard", "track")
    return import_extra("torch.utils.tensorboard", "output.tensorboard", "track")


class WeightsAndBiases:
    """A run of a Weights & Biases project.

    Args:
        project: Name of the project.
        directory: The run's folder; the run at the service has the folder's name.
        config: Effective configuration, shown with the run.

    Raises:
        HydraulisError: The library is not installed (code `extra_missing`), the service refuses the run
            (`tracker_unavailable`), or the run's identifier cannot be written (`file_unwritable`).
    """

    def __init__(self, project: str, directory: RunDirectory, config: Mapping[str, object]) -> None:
        wandb = require_wandb()
        try:
            self._run = wandb.init(
                project=project,
                name=directory.path.name,
                dir=str(directory.path),
                id=_identity(directory),
                resume="allow",
                config=dict(config),
                # The run's own display uses the terminal.
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            message = (
                f"output.wandb_project = '{project}' cannot be used ({error}): log in with `wandb login`, or "
                "set WANDB_MODE=offline"
            )
            raise HydraulisError(message, code="tracker_unavailable") from error

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Log the values of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def require_wandb() -> ModuleType:
    """Import the library.

    Raises:
        HydraulisError: The library is not installed (code `extra_missing`).
    """
    return import_extra("wandb", "output.wandb_project", "track")


def _identity(directory: RunDirectory) -> str:
    """Return the run's stored identifier, so that a resumed run continues the same line of a chart."""
    path = directory.path / WANDB_ID
    stored = path.read_bytes() if path.is_file() else b""
    # A crash can leave an empty or a zeroed file.
    if not re.fullmatch(rb"[0-9a-f]{12}\n", stored):
        stored = f"{uuid.uuid4().hex[:12]}\n".encode()
        directory.write(WANDB_ID, stored)
    return stored.decode().strip()


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
