"""Runs of Weights & Biases.

Where they go, the library says itself: WANDB_MODE=offline keeps them in the run's folder, for `wandb sync`.
"""

import uuid
from collections.abc import Mapping
from types import ModuleType

from hydraulis.errors import HydraulisError
from hydraulis.extras import import_extra
from hydraulis.runtime.records.run_directory import WANDB_ID, RunDirectory


class WeightsAndBiases:
    """A run of a project.

    Args:
        project: that it belongs to.
        directory: of the run, whose name it bears.
        config: the effective configuration, shown beside it.

    Raises:
        HydraulisError: wandb is not installed (code `extra_missing`), or refuses the run
            (`tracker_unavailable`), or the run's name there cannot be written (`file_unwritable`).
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
                # The terminal is the display's.
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
        HydraulisError: it is not installed (code `extra_missing`).
    """
    return import_extra("wandb", "output.wandb_project", "track")


def _identity(directory: RunDirectory) -> str:
    """Give the name that a run has had since it was begun: resumed, it is one line of a chart, not two."""
    path = directory.path / WANDB_ID
    if not path.exists():
        directory.write(WANDB_ID, uuid.uuid4().hex[:12] + "\n")
    return path.read_text(encoding="utf-8").strip()
