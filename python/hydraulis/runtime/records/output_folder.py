"""Where a run writes: whether its folder can be made, or gone on in, and has room for its checkpoints."""

import dataclasses
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from hydraulis.config.planner import MIB
from hydraulis.config.run import RunConfig
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import check_folder_writable, nearest_existing
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.records.run_directory import named_folder, not_made
from hydraulis.runtime.state.adamw import MOMENTS
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """What was found.

    Attributes:
        path: that is wanted.
        is_taken: whether it is there already, so that a run that begins anew gets a number.
        needed: bytes that checkpoints will take, beside those that are there.
        free: bytes of room.
        is_counted: whether `needed` is of all of them; else of one, as nobody knows yet how many will stay.
    """

    path: Path
    is_taken: bool
    needed: int
    free: int
    is_counted: bool


def look_at_output(config: RunConfig, resumed: ResumedRun | None) -> OutputFolder:
    """See whether a run can write where it is to; only a folder is made in it, and removed again.

    Args:
        config: of the run.
        resumed: the run to go on with; None to begin anew.

    Raises:
        InvalidInputError: The folder cannot be made, or has no room for one more checkpoint than are kept
            (code `file_unwritable`).
        HydraulisError: The folder of a resumed run cannot be written (code `file_unwritable`).
    """
    path, above, is_taken = _to_go_on_in(resumed.run) if resumed else _to_make(config.output.directory)
    one, count = _checkpoint_bytes(config), _new_at_once(config, resumed)
    needed, free = one * count, shutil.disk_usage(above).free
    if needed > free:
        checkpoints = "a checkpoint takes" if count == 1 else f"{count} checkpoints at once take"
        fewer = _fewer(config, resumed, count)
        # Rounded away from each other: else too little may read as enough.
        message = (
            f"the run's folder '{path}' has {free // MIB:,} MiB of room, and {checkpoints} "
            f"{math.ceil(needed / MIB):,}: make room, {fewer}or set output.directory to another disk"
        )
        raise InvalidInputError(message, code="file_unwritable")
    return OutputFolder(
        path=path, is_taken=is_taken, needed=needed, free=free, is_counted=_is_counted(config)
    )


def _to_go_on_in(run: Path) -> tuple[Path, Path, bool]:
    try:
        check_folder_writable(run)
    except OSError as error:
        message = (
            f"{run} cannot be written: {error.strerror or error}; change its permissions, or start "
            "without resuming"
        )
        raise HydraulisError(message, code="file_unwritable") from error
    return run, run, False


def _to_make(directory: str) -> tuple[Path, Path, bool]:
    """Give the folder that is wanted, the one in which it is made, and whether its name is taken."""
    wanted = named_folder(directory)
    try:
        there = nearest_existing(wanted)
    except (OSError, ValueError) as error:
        raise not_made(wanted, error) from error
    above = there if there != wanted else wanted.absolute().parent
    try:
        check_folder_writable(above)
    except OSError as error:
        raise not_made(wanted, f"'{above}' cannot be written ({error.strerror or error})") from error
    return wanted, above, there == wanted


def _checkpoint_bytes(config: RunConfig) -> int:
    """Count the bytes of one checkpoint: master parameters, and of those that are trained the moments."""
    narrow: torch.dtype = getattr(torch, config.train.dtype)
    wide = wide_dtype(narrow).itemsize
    parts = [one for one in ModelParameters.parted(config.model, config.train.frozen) if one is not None]
    return sum(part.num_elements * wide * (1 + len(MOMENTS) if part.trained else 1) for part in parts)


def _is_counted(config: RunConfig) -> bool:
    """Tell whether the number of checkpoints is known: where all stay, only once that of the steps is."""
    checkpoint = config.checkpoint
    return checkpoint.every_steps is None or checkpoint.keep > 0 or config.train.steps is not None


def _fewer(config: RunConfig, resumed: ResumedRun | None, count: int) -> str:
    """Say how fewer would stay, if they could, as a list of remedies goes on."""
    keep_one = dataclasses.replace(config.checkpoint, keep=1)
    if _new_at_once(dataclasses.replace(config, checkpoint=keep_one), resumed) >= count:
        return ""
    # 0 keeps all, so there is nothing below it.
    return "lower checkpoint.keep, " if config.checkpoint.keep else "set checkpoint.keep to 1 or more, "


def _new_at_once(config: RunConfig, resumed: ResumedRun | None) -> int:
    """Count the checkpoints, at least one, that come to those that are there before one of all is removed."""
    every, keep, steps = config.checkpoint.every_steps, config.checkpoint.keep, config.train.steps
    if every is None:
        return 1
    first = resumed.manifest.step if resumed else 0
    there = len(CheckpointFolder.of_run(resumed.run).complete()) if resumed else 0
    # How long epochs are is not known before the data are; the last checkpoint is that of the end.
    to_come = None if steps is None else steps // every - first // every + (steps % every > 0)
    # One is written before the oldest goes; where all stay, as many as will be made.
    limits = [one for one in (to_come, keep + 1 - there if keep else None) if one is not None]
    return max(1, min(limits, default=1))
