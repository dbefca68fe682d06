"""Finds, creates and removes the checkpoint folders of a run."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hydraulis.errors import InvalidInputError
from hydraulis.runtime.checkpoint.manifest import MANIFEST
from hydraulis.runtime.records.run_directory import CHECKPOINTS, why_no_folder
from hydraulis.text.numbers import format_count

_NAME = re.compile(r"step-(\d{8,})")
_NEW_RUN = ", or train without resuming, which starts a new run in its own folder"
_MOST_NAMED = 5


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
        """List the complete checkpoints, oldest first."""
        return [path for path in self._all() if (path / MANIFEST).is_file()]

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint, None if there is none."""
        return next(reversed(self.complete()), None)

    def unfinished(self) -> str:
        """Describe the incomplete checkpoints as the end of a sentence; empty if there are none."""
        names = [path.name for path in self._all() if not (path / MANIFEST).is_file()]
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

    def rotate(self, keep: int) -> None:
        """Remove incomplete checkpoints, and all but the newest complete ones.

        Args:
            keep: Number of complete checkpoints to keep; 0 keeps all of them.
        """
        complete = self.complete()
        staying = complete[-keep:] if keep else complete
        for path in self._all():
            if path not in staying:
                remove(path)

    def _all(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        found = [(step_of(path), path) for path in self.path.iterdir()]
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


def newest_checkpoint(run: Path, otherwise: str = _NEW_RUN) -> Path:
    """Return the newest complete checkpoint of a run.

    Args:
        run: The run's folder.
        otherwise: End of the error message: a second remedy, besides naming another run.

    Raises:
        InvalidInputError: The run has no complete checkpoint (code `checkpoint_missing`).
    """
    folder = CheckpointFolder.of_run(run)
    newest = folder.newest()
    if newest is None:
        why = f"{run} has no complete checkpoint{folder.unfinished()}" if run.is_dir() else why_no_folder(run)
        message = f"{why}; name the folder of a run that wrote one{otherwise}"
        raise InvalidInputError(message, code="checkpoint_missing")
    return newest


def checkpoint_of(source: Path) -> Path:
    """Return `source` if it is a complete checkpoint, or the newest one if it is a run's folder.

    Raises:
        InvalidInputError: The folder is neither (code `checkpoint_missing`).
    """
    if (source / MANIFEST).is_file():
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
