"""Finds, creates and removes the checkpoint folders of a run."""

import fcntl
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import (
    is_at,
    is_folder,
    is_regular_file,
    lock_file,
    open_unlinked,
    unreadable_error,
)
from hydraulis.runtime.checkpoint.manifest import MANIFEST
from hydraulis.runtime.records.run_directory import CHECKPOINTS, why_no_folder
from hydraulis.text.values import format_count

_NAME = re.compile(r"step-(\d{8,})")
_NEW_RUN = ", or train without resuming, which starts a new run in its own folder"
_MOST_NAMED = 5
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """The folder `checkpoints` of a run; a subfolder is a complete checkpoint once it has a manifest.

    Attributes:
        path: Path of the folder; it may be absent.
    """

    path: Path

    @classmethod
    def of_run(cls, run: Path) -> "CheckpointFolder":
        """Return the checkpoint folder of the run in folder `run`."""
        return cls(run / CHECKPOINTS)

    def step(self, step: int) -> Path:
        """Return the path of the checkpoint after `step` completed iterations."""
        return self.path / f"step-{step:08d}"

    def complete(self) -> list[Path]:
        """List the complete checkpoints, oldest first.

        Raises:
            InvalidInputError: The folder, or that of a checkpoint, cannot be read (code `file_unreadable`).
        """
        return [path for path in self._all() if is_regular_file(path / MANIFEST)]

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint, None if there is none.

        Raises:
            InvalidInputError: The error of `complete`.
        """
        return next(reversed(self.complete()), None)

    def unfinished(self) -> str:
        """Describe the incomplete checkpoints as the end of a sentence; empty if there are none.

        Raises:
            InvalidInputError: The error of `complete`.
        """
        names = [path.name for path in self._all() if not is_regular_file(path / MANIFEST)]
        if not names:
            return ""
        others = f" (and {format_count(len(names) - 1, 'other')} before it)" if len(names) > 1 else ""
        return f": {names[-1]}{others} lacks {MANIFEST}, which is written last, so it was never completed"

    def begin(self, step: int) -> Path:
        """Create an empty folder for a checkpoint; an earlier folder of the same step is removed."""
        path = self.step(step)
        remove(path)
        path.mkdir(parents=True)
        return path

    def rotate(self, keep: int, best: Path | None = None) -> None:
        """Remove incomplete checkpoints, and all but the newest complete ones.

        A checkpoint that is read (see `pinned_checkpoint`) stays until a later rotation.

        Args:
            keep: Number of complete checkpoints to keep; 0 keeps all of them.
            best: Checkpoint that is kept too; None for none.
        """
        complete = self.complete()
        staying = [*(complete[-keep:] if keep else complete), best]
        for path in self._all():
            if path not in staying:
                _remove_unless_read(path)

    def _all(self) -> list[Path]:
        if not is_folder(self.path):
            return []
        try:
            found = [(step_of(path), path) for path in self.path.iterdir()]
        except OSError as error:
            raise unreadable_error(self.path, error) from error
        return [path for _, path in sorted((step, path) for step, path in found if step is not None)]


def step_of(checkpoint: Path) -> int | None:
    """Return the step in the name of a checkpoint's folder; None if it has another name."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else None


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint if it exists; of a link to a folder elsewhere, the link alone.

    The manifest is removed first, so a folder with a manifest always has its shards.
    """
    if checkpoint.is_symlink() or not checkpoint.is_dir():
        checkpoint.unlink(missing_ok=True)
        return
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def _remove_unless_read(checkpoint: Path) -> None:
    """Remove a checkpoint, unless another process reads it or the disk does not say whether one does."""
    path = checkpoint / MANIFEST
    try:
        manifest = _opened_to_lock(path)
    except (FileNotFoundError, NotADirectoryError):
        # An incomplete checkpoint, or a file with the name of one.
        remove(checkpoint)
        return
    except OSError:
        return
    with manifest:
        try:
            lock_file(manifest, fcntl.LOCK_EX)
        except OSError:
            return
        # Under the lock, so that a reader finds the manifest locked or gone.
        (checkpoint if checkpoint.is_symlink() else path).unlink()
    # The manifest is closed: NFS keeps an open file in its folder under another name, and the folder with it.
    remove(checkpoint)


def _opened_to_lock(manifest: Path) -> BinaryIO:
    """Open a manifest for an exclusive lock."""
    try:
        return open_unlinked(manifest, "r+b")
    except PermissionError:
        # It is read-only. NFS then refuses the lock, and other disks grant it.
        return open_unlinked(manifest, "rb")


def newest_checkpoint(run: Path, otherwise: str = _NEW_RUN) -> Path:
    """Return the newest complete checkpoint of a run.

    Args:
        run: The run's folder.
        otherwise: End of the error message: a second remedy, besides naming another run.

    Raises:
        InvalidInputError: The run has no complete checkpoint (code `checkpoint_missing`), or its folders
            cannot be read (`file_unreadable`).
    """
    folder = CheckpointFolder.of_run(run)
    newest = folder.newest()
    if newest is None:
        why = (
            f"{run} has no complete checkpoint{folder.unfinished()}" if is_folder(run) else why_no_folder(run)
        )
        message = f"{why}; name the folder of a run that wrote one{otherwise}"
        raise InvalidInputError(message, code="checkpoint_missing")
    return newest


def checkpoint_of(source: Path) -> Path:
    """Return `source` if it is a complete checkpoint, or the newest one if it is a run's folder.

    Raises:
        InvalidInputError: The folder is neither (code `checkpoint_missing`), or cannot be read
            (`file_unreadable`).
    """
    if is_regular_file(source / MANIFEST):
        return source
    complete = CheckpointFolder(source.parent).complete() if source.parent.name == CHECKPOINTS else []
    if not complete:
        return newest_checkpoint(source, "")
    # The message lists only the newest checkpoints, which users want most often.
    names = ", ".join(path.name for path in complete[-_MOST_NAMED:])
    before = len(complete) - _MOST_NAMED
    others = f" (and {format_count(before, 'other')} before)" if before > 0 else ""
    message = f"{source} is no complete checkpoint; name one of {source.parent}: {names}{others}"
    raise InvalidInputError(message, code="checkpoint_missing")


@contextmanager
def pinned_checkpoint(source: Path) -> Iterator[Path]:
    """Find a checkpoint as `checkpoint_of` does, and keep a training from removing it in the block.

    The lock of its manifest tells the training that it is read.

    Raises:
        InvalidInputError: There is none, or it was removed while it was read, from a disk without locks (code
            `checkpoint_missing`), or it cannot be read (`file_unreadable`).
    """
    with ExitStack() as pin:
        checkpoint = checkpoint_of(source)
        while not _pin(checkpoint, pin):
            checkpoint = checkpoint_of(source)
        try:
            yield checkpoint
        except HydraulisError as error:
            # NFS reports a file that was removed while it was open as stale.
            is_missing = error.code in ("checkpoint_damaged", "file_unreadable")
            if not is_missing or is_regular_file(checkpoint / MANIFEST):
                raise
            message = (
                f"checkpoint {checkpoint} was removed while it was read, as a training does with all but its "
                "newest ones: name its run or a newer checkpoint, or raise checkpoint.keep of the training"
            )
            raise InvalidInputError(message, code="checkpoint_missing") from error


def _pin(checkpoint: Path, pin: ExitStack) -> bool:
    """Lock a checkpoint's manifest until the stack is closed; return whether it was still there."""
    try:
        manifest = pin.enter_context(open_unlinked(checkpoint / MANIFEST, "rb"))
        lock_file(manifest, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        # A training is removing it; the pause lets it finish.
        time.sleep(_PAUSE_S)
        return False
    except OSError:
        # Its reader reports it.
        return True
    # NFS keeps a removed file that is open under another name.
    return is_at(manifest, checkpoint / MANIFEST)
