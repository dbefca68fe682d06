"""What a run goes on from, where it writes, and who follows it."""

import os
import shutil
from pathlib import Path

import torch

from hydraulis.config.run import RunConfig
from hydraulis.data.open import Data
from hydraulis.errors import InvalidInputError
from hydraulis.preflight.finding import Status
from hydraulis.preflight.model import num_elements
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.reader import read_manifest
from hydraulis.runtime.checkpoint.resume import ResumedRun, newest_of
from hydraulis.runtime.parameters import ModelParameters
from hydraulis.runtime.tracking.tracker import require_trackers

MIB = 1 << 20


def look_at_resume(config: RunConfig, data: Data | None) -> tuple[Status, str]:
    """Find the checkpoint to go on from, and compare it with the run as far as the data are known.

    Raises:
        HydraulisError: it is not there, not whole, or of another model or data (see `ResumedRun.check`).
    """
    resume = config.checkpoint.resume
    if not resume:
        return "ok", "begins anew"
    checkpoint = newest_of(resume, config.output.directory)
    if checkpoint is None:
        return "ok", "there is no checkpoint yet: begins anew"
    resumed = ResumedRun(checkpoint.parents[1], checkpoint, read_manifest(checkpoint))
    if data is None:
        return "later", f"{checkpoint} is whole; its data are compared once they are indexed"
    resumed.check(config, DataPosition(config, data.train).cursor(resumed.manifest.step))
    return "ok", f"goes on after step {resumed.manifest.step} of {resumed.run}"


def look_at_output(config: RunConfig) -> tuple[Status, str]:
    """See whether the run's folder can be made, and has room for its checkpoints.

    Raises:
        InvalidInputError: it cannot be written, or has no room (code `run_directory`).
    """
    wanted = Path(config.output.directory)
    there = next(path for path in (wanted, *wanted.absolute().parents) if path.exists())
    above = there if there != wanted else wanted.absolute().parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        message = (
            f"output.directory = '{wanted}' cannot be made: '{above}' is no folder that can be written; name "
            "another one"
        )
        raise InvalidInputError(message, code="run_directory")
    needed, free = _checkpoint_bytes(config), shutil.disk_usage(above).free
    if needed > free:
        message = (
            f"output.directory = '{wanted}' has {free / MIB:,.0f} MiB of room, and the checkpoints of a run "
            f"take {needed / MIB:,.0f}: make room, or lower checkpoint.keep"
        )
        raise InvalidInputError(message, code="run_directory")
    text = f"{wanted} can be written; checkpoints take {needed / MIB:,.0f} MiB of {free / MIB:,.0f}"
    # A run that goes on stays in its folder.
    taken = wanted.exists() and not config.checkpoint.resume
    return "ok", f"{text}; it is there already, so a number is added to its name" if taken else text


def look_at_services(config: RunConfig) -> tuple[Status, str]:
    """See whether the services that follow the run are installed.

    Raises:
        HydraulisError: one is not (code `extra_missing`).
    """
    require_trackers(config.output)
    asked = [("TensorBoard", config.output.tensorboard), ("Weights & Biases", config.output.wandb_project)]
    return "ok", ", ".join(name for name, wanted in asked if wanted) or "none is asked for"


def _checkpoint_bytes(config: RunConfig) -> int:
    """Count the bytes of all checkpoints that stay, and of the one that is written beside them."""
    narrow: torch.dtype = getattr(torch, config.train.dtype)
    wide = torch.promote_types(narrow, torch.float32).itemsize
    parts = [one for one in ModelParameters.parted(config.model, config.train.frozen) if one is not None]
    one = sum(num_elements(part) * wide * (3 if part.trained else 1) for part in parts)
    staying = config.checkpoint.keep if config.checkpoint.every_steps is not None else 0
    return one * (staying + 1)
