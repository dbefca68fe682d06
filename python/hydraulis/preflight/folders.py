"""What a run goes on from, where it writes, and who follows it."""

import os
import shutil
from pathlib import Path

import torch

from hydraulis.config.run import RunConfig
from hydraulis.data.open import Data
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.preflight.finding import Status
from hydraulis.preflight.model import num_elements
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.reader import check_shards, read_manifest
from hydraulis.runtime.checkpoint.resume import ResumedRun, newest_of
from hydraulis.runtime.parameters import ModelParameters
from hydraulis.runtime.run_directory import named_folder, not_made
from hydraulis.runtime.tracking.tracker import require_trackers

MIB = 1 << 20


class FolderLook:
    """Looks at the folder that a run goes on from, and at the one where it writes.

    Attributes:
        config: of the run.
        resumed: the run to go on with; None if there is none, or it is refused.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.resumed: ResumedRun | None = None

    def resume(self, data: Data | None) -> tuple[Status, str]:
        """Find the checkpoint to go on from, and compare it with the run as far as the data are known.

        Raises:
            HydraulisError: it is not there, not whole, or of another model or data (see `ResumedRun.check`).
        """
        resume = self.config.checkpoint.resume
        if not resume:
            return "ok", "begins anew"
        checkpoint = newest_of(resume, self.config.output.directory)
        if checkpoint is None:
            return "ok", "there is no checkpoint yet: begins anew"
        resumed = ResumedRun(checkpoint.parents[1], checkpoint, read_manifest(checkpoint))
        self.resumed = resumed
        check_shards(checkpoint, resumed.manifest)
        if data is None:
            return "later", f"{checkpoint} is whole; its data are compared once they are indexed"
        resumed.check(self.config, DataPosition(self.config, data.train).cursor(resumed.manifest.step))
        return "ok", f"goes on after step {resumed.manifest.step} of {resumed.run}"

    def output(self) -> tuple[Status, str]:
        """See whether the run's folder can be made, or gone on in, and has room for its checkpoints.

        Raises:
            HydraulisError: it cannot be made or has no room (code `run_directory`), or that of a resumed run
                cannot be written (`run_directory_write`).
        """
        if self.resumed is not None:
            wanted = above = self.resumed.run
            taken = False
            if not _is_writable(above):
                message = (
                    f"{wanted} cannot be written; change its permissions, or begin anew without resuming"
                )
                raise HydraulisError(message, code="run_directory_write")
        else:
            wanted = named_folder(self.config.output.directory)
            above, taken = _above(wanted)
        needed, free = _checkpoint_bytes(self.config), shutil.disk_usage(above).free
        if needed > free:
            message = (
                f"the run's folder '{wanted}' has {free / MIB:,.0f} MiB of room, and its checkpoints "
                f"take {needed / MIB:,.0f}: make room, or lower checkpoint.keep"
            )
            raise InvalidInputError(message, code="run_directory")
        text = f"{wanted} can be written; checkpoints take {needed / MIB:,.0f} MiB of {free / MIB:,.0f}"
        return "ok", f"{text}; it is there already, so a number is added to its name" if taken else text


def look_at_services(config: RunConfig) -> tuple[Status, str]:
    """See whether the services that follow the run are installed.

    Raises:
        HydraulisError: one is not (code `extra_missing`).
    """
    require_trackers(config.output)
    asked = [("TensorBoard", config.output.tensorboard), ("Weights & Biases", config.output.wandb_project)]
    return "ok", ", ".join(name for name, wanted in asked if wanted) or "none is asked for"


def _above(wanted: Path) -> tuple[Path, bool]:
    """Give the folder in which that of a run is made, and whether there is one of its name already."""
    try:
        there = next(path for path in (wanted, *wanted.absolute().parents) if _is_there(path))
    except (OSError, ValueError) as error:
        raise not_made(wanted, error) from error
    above = there if there != wanted else wanted.absolute().parent
    if not _is_writable(above):
        raise not_made(wanted, f"'{above}' is no folder that can be written")
    return above, there == wanted


def _is_there(path: Path) -> bool:
    # Not `exists`: to it a link to nowhere is nothing, and which errors it raises depends on the Python.
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _checkpoint_bytes(config: RunConfig) -> int:
    """Count the bytes of all checkpoints that stay, and of the one that is written beside them."""
    narrow: torch.dtype = getattr(torch, config.train.dtype)
    wide = torch.promote_types(narrow, torch.float32).itemsize
    parts = [one for one in ModelParameters.parted(config.model, config.train.frozen) if one is not None]
    one = sum(num_elements(part) * wide * (3 if part.trained else 1) for part in parts)
    staying = config.checkpoint.keep if config.checkpoint.every_steps is not None else 0
    return one * (staying + 1)
