"""Logs runs to Weights & Biases.

The library's own settings choose the destination: WANDB_MODE=offline keeps the data in the run's folder, for
`wandb sync`.
"""

import re
import uuid
from collections.abc import Mapping
from types import ModuleType

from hydraulis.errors import HydraulisError
from hydraulis.extras import import_extra
from hydraulis.runtime.records.run_directory import WANDB_ID, RunDirectory


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
