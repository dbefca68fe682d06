"""The folder that a run leaves behind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import replace_file

# What a run's folder holds. Files of which every step has a line:
METRICS = "metrics.jsonl"
PLANS = "plans.jsonl"
TIMES = "times.jsonl"
# Files of which some steps have one:
CALIBRATIONS = "calibrations.jsonl"
EVALUATIONS = "evaluations.jsonl"
# Whole files:
ANALYSIS = "analysis.json"
CORPUS = "corpus.json"
LOCK = "lock"
PROFILE = "profile.json"
"""What no other folder has: a model's has a config.json too."""
REPORT = "report.html"
RUN_CONFIG = "config.json"
TRACE = "trace.json"
WANDB_ID = "wandb-id.txt"
# Folders:
CARRIED = "hugging_face"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
"""The library's own name for it."""


class RunDirectory:
    """The folder of a run; nothing in it is ever half-written.

    Attributes:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, wanted: str | Path) -> Self:
        """Make the folder, or where it exists the first free one of `NAME-2`, `NAME-3` and so on.

        Raises:
            InvalidInputError: it cannot be made (code `file_unwritable`).
        """
        first = named_folder(wanted)
        number = 1
        while True:
            path = first if number == 1 else first.with_name(f"{first.name}-{number}")
            try:
                path.mkdir(parents=True)
            except (OSError, ValueError) as error:
                # A parent may be what exists: a link to nowhere.
                if not (isinstance(error, FileExistsError) and os.path.lexists(path)):
                    raise not_made(path, error) from error
                number += 1
            else:
                return cls(path)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a whole file: it appears under its name only when it is complete.

        Raises:
            HydraulisError: it cannot be written (code `file_unwritable`).
        """
        path = self.path / name
        with writing(path), replace_file(path) as unfinished:
            unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def folder(self, name: str) -> Self:
        """Give a folder in it, which is made if it is not there, to write in as in this one.

        Raises:
            HydraulisError: it cannot be made (code `file_unwritable`).
        """
        path = self.path / name
        with writing(path):
            path.mkdir(exist_ok=True)
        return type(self)(path)

    def append(self, name: str, line: str) -> None:
        """Append a line to a file: all of it, or none.

        Raises:
            HydraulisError: it cannot be written (code `file_unwritable`).
        """
        path = self.path / name
        missing = memoryview((line + "\n").encode())
        with writing(path), path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                while missing:
                    missing = missing[file.write(missing) :]
            except OSError:
                file.truncate(end)
                raise

    def keep_lines(self, name: str, lines: int) -> None:
        """Cut a file behind its first lines, and behind the last one that is whole; it need not be there.

        Raises:
            HydraulisError: it cannot be written (code `file_unwritable`).
        """
        path = self.path / name
        if not path.exists():
            return
        with writing(path), path.open("r+b") as file:
            end = 0
            for _ in range(lines):
                if not file.readline().endswith(b"\n"):
                    break
                end = file.tell()
            file.truncate(end)

    def remove(self, name: str) -> None:
        """Remove a file.

        Raises:
            HydraulisError: it cannot be removed (code `file_unwritable`).
        """
        path = self.path / name
        with writing(path):
            path.unlink()


def named_folder(wanted: str | Path) -> Path:
    """Give the folder that `output.directory` asks for.

    Raises:
        InvalidInputError: it has no name that a number could be added to (code `file_unwritable`).
    """
    path = Path(wanted)
    if path.name in ("", ".."):
        message = f"output.directory = {str(wanted)!r} has no name of its own; name a new folder"
        raise InvalidInputError(message, code="file_unwritable")
    return path


def not_made(path: Path, reason: object) -> InvalidInputError:
    """Say why the folder of a run cannot be made."""
    message = f"output.directory = {str(path)!r} cannot be made: {reason}; name another folder"
    return InvalidInputError(message, code="file_unwritable")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file or folder of a run that the block cannot write.

    Raises:
        HydraulisError: instead of an OSError (code `file_unwritable`).
    """
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error}; make room, or set output.directory to another disk"
        raise HydraulisError(message, code="file_unwritable") from error


def require_run(path: Path) -> None:
    """Refuse what is no folder of a run.

    Raises:
        InvalidInputError: it is none (code `run_unreadable`).
    """
    if not (path / PROFILE).exists():
        raise not_a_run(path, f"it has no {PROFILE}" if path.is_dir() else why_no_folder(path))


def why_no_folder(path: Path) -> str:
    """Say what is wrong with a path that must be a folder's and is not."""
    return f"{path} is no folder" if path.exists() else f"there is no folder {path.absolute()}"


def not_a_run(path: Path, why: str) -> InvalidInputError:
    """Make the error for a folder, or a file in one, that no run of this version has written."""
    message = f"'{path}' was not written by a run of this version: {why}; name the folder of a run"
    return InvalidInputError(message, code="run_unreadable")
