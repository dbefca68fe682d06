"""The checkpoints of a run, as folders: which are complete, which is the newest, which may go."""

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
    """The folder `checkpoints` of a run; a folder in it is a checkpoint once its manifest is there.

    Attributes:
        path: of the folder; it need not exist.
    """

    path: Path

    @classmethod
    def of_run(cls, run: Path) -> "CheckpointFolder":
        """Give the checkpoints of a run."""
        return cls(run / CHECKPOINTS)

    def step(self, step: int) -> Path:
        """Name the checkpoint after so many completed iterations."""
        return self.path / f"step-{step:08d}"

    def complete(self) -> list[Path]:
        """List the checkpoints that are complete, the oldest first."""
        return [path for path in self._all() if (path / MANIFEST).is_file()]

    def newest(self) -> Path | None:
        """Give the newest complete checkpoint, None if there is none."""
        return next(reversed(self.complete()), None)

    def unfinished(self) -> str:
        """Name what is there and is no checkpoint, as a sentence goes on; empty if there is nothing."""
        names = [path.name for path in self._all() if not (path / MANIFEST).is_file()]
        if not names:
            return ""
        others = f" (and {format_count(len(names) - 1, 'other')} before it)" if len(names) > 1 else ""
        return f": {names[-1]}{others} lacks {MANIFEST}, which is written last, so it was never completed"

    def begin(self, step: int) -> Path:
        """Make an empty folder for a checkpoint; what was begun there before is removed."""
        path = self.step(step)
        remove(path)
        path.mkdir(parents=True)
        return path

    def rotate(self, keep: int) -> None:
        """Remove all but the newest complete checkpoints, and whatever was never completed.

        Args:
            keep: how many stay; 0 for all that are complete.
        """
        complete = self.complete()
        staying = complete[-keep:] if keep else complete
        for path in self._all():
            if path not in staying:
                remove(path)

    def _all(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        found = [(_NAME.fullmatch(path.name), path) for path in self.path.iterdir()]
        return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint if it is there: first its manifest, so that it is never one without its shards."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    if checkpoint.exists():
        shutil.rmtree(checkpoint)


def newest_checkpoint(run: Path, otherwise: str = _NEW_RUN) -> Path:
    """Give the newest complete checkpoint of a run.

    Args:
        run: its folder.
        otherwise: what there is to do beside naming another run, as a sentence goes on.

    Raises:
        InvalidInputError: there is none (code `checkpoint_missing`).
    """
    folder = CheckpointFolder.of_run(run)
    newest = folder.newest()
    if newest is None:
        why = f"{run} has no complete checkpoint{folder.unfinished()}" if run.is_dir() else why_no_folder(run)
        message = f"{why}; name the folder of a run that wrote one{otherwise}"
        raise InvalidInputError(message, code="checkpoint_missing")
    return newest


def checkpoint_of(source: Path) -> Path:
    """Give the checkpoint that a folder is, or the newest of the run that it is.

    Raises:
        InvalidInputError: it is neither (code `checkpoint_missing`).
    """
    if (source / MANIFEST).is_file():
        return source
    complete = CheckpointFolder(source.parent).complete() if source.parent.name == CHECKPOINTS else []
    if not complete:
        return newest_checkpoint(source, "")
    # Of many the newest, which are those that are looked for as a rule.
    names = ", ".join(path.name for path in complete[-_MOST_NAMED:])
    before = len(complete) - _MOST_NAMED
    others = f" (and {format_count(before, 'other')} before)" if before > 0 else ""
    message = f"{source} is no complete checkpoint; name one of {source.parent}: {names}{others}"
    raise InvalidInputError(message, code="checkpoint_missing")
