"""Checks that a run can create or resume its folder, and that the disk has room for its checkpoints."""

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hydraulis.config.run import RunConfig
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import check_folder_writable, nearest_existing
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.records.run_directory import CHECKPOINTS, named_folder, not_made
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.state_bytes import StateBytes
from hydraulis.text.values import free_mib, needed_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """The result of the check of a run's folder.

    Attributes:
        path: Requested folder.
        is_taken: Whether the folder exists, so that a new run gets a numbered name.
        needed: Bytes of the run's checkpoints, in addition to those on the disk.
        free: Free bytes of the disk.
        is_counted: Whether `needed` covers all checkpoints; otherwise it covers one, because the number of
            kept checkpoints is not known yet.
    """

    path: Path
    is_taken: bool
    needed: int
    free: int
    is_counted: bool


def checked_output(config: RunConfig, resumed: ResumedRun | None) -> OutputFolder:
    """Check that a run can write its folder; the check creates and removes one temporary folder.

    Args:
        config: The run's configuration.
        resumed: Run to resume; None for a new run.

    Raises:
        InvalidInputError: The folder cannot be created, or the disk has no room for one checkpoint more than
            the run keeps (code `file_unwritable`).
        HydraulisError: The folder of a resumed run cannot be written (code `file_unwritable`).
    """
    path, above, is_taken = _to_go_on_in(resumed.run) if resumed else _to_make(config.output.directory)
    one, count = _checkpoint_bytes(config), _new_at_once(config, resumed)
    needed, free = one * count, shutil.disk_usage(above).free
    if needed > free:
        checkpoints = "a checkpoint takes" if count == 1 else f"{count} checkpoints at once take"
        fewer = _fewer(config, resumed, count)
        message = (
            f"the run's folder '{path}' has {free_mib(free)} MiB of room, and {checkpoints} "
            f"{needed_mib(needed)}: make room, {fewer}or set output.directory to another disk"
        )
        raise InvalidInputError(message, code="file_unwritable")
    return OutputFolder(
        path=path, is_taken=is_taken, needed=needed, free=free, is_counted=_is_counted(config)
    )


def _to_go_on_in(run: Path) -> tuple[Path, Path, bool]:
    for folder in (run, run / CHECKPOINTS):
        try:
            # A run whose state is in memory only has no checkpoints yet.
            if folder == run or os.path.lexists(folder):
                check_folder_writable(folder)
        except OSError as error:
            message = (
                f"{folder} cannot be written: {error.strerror or error}; change its permissions, or start "
                "without resuming"
            )
            raise HydraulisError(message, code="file_unwritable") from error
    return run, run, False


def _to_make(directory: str) -> tuple[Path, Path, bool]:
    """Return the requested folder, its nearest existing parent, and whether the folder exists."""
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
    """Count the bytes of one checkpoint: frozen parameters, master parameters and moments of the others."""
    count = ModelParameters.from_config(config.model, config.train.frozen).elements
    of_element = StateBytes.of_run(config)
    return of_element.changed(count) + of_element.unchanged(count)


def _is_counted(config: RunConfig) -> bool:
    """Return whether the number of checkpoints is known; if all are kept, it depends on `train.steps`."""
    checkpoint = config.checkpoint
    return checkpoint.every_steps is None or checkpoint.keep > 0 or config.train.steps is not None


def _fewer(config: RunConfig, resumed: ResumedRun | None, count: int) -> str:
    """Return the remedy of keeping fewer checkpoints for the error message; empty if it would not help."""
    keep_one = dataclasses.replace(config.checkpoint, keep=1)
    if _new_at_once(dataclasses.replace(config, checkpoint=keep_one), resumed) >= count:
        return ""
    # 0 keeps all checkpoints, so it cannot be lowered.
    return "lower checkpoint.keep, " if config.checkpoint.keep else "set checkpoint.keep to 1 or more, "


def _new_at_once(config: RunConfig, resumed: ResumedRun | None) -> int:
    """Count the checkpoints, at least one, that the run adds before it first removes one."""
    every, keep, steps = config.checkpoint.every_steps, config.checkpoint.keep, config.train.steps
    if every is None:
        return 1
    first = resumed.manifest.step if resumed else 0
    there = len(CheckpointFolder.of_run(resumed.run).complete()) if resumed else 0
    # The length of an epoch is known only after the data are read; the last checkpoint is the final one.
    to_come = None if steps is None else steps // every - first // every + (steps % every > 0)
    # A new checkpoint is written before the oldest one is removed; with `keep` = 0 none is removed.
    most = keep + config.checkpoint.keep_best + 1
    limits = [one for one in (to_come, most - there if keep else None) if one is not None]
    return max(1, min(limits, default=1))
