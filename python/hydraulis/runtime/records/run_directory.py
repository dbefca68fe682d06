"""The folder of a run: its file names, and atomic writes into it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import is_folder, is_regular_file, open_unlinked, replace_file

# Files with one line per step:
METRICS = "metrics.jsonl"
PLANS = "plans.jsonl"
TIMES = "times.jsonl"
# Files with a line for some steps:
CALIBRATIONS = "calibrations.jsonl"
EVALUATIONS = "evaluations.jsonl"
SAMPLES = "samples.jsonl"
# Files that are written as a whole:
ANALYSIS = "analysis.json"
CORPUS = "corpus.json"
LOCK = "lock"
MEMORY = "memory"
"""File that names the start with copies of the state in the memory of the nodes."""
PROFILE = "profile.json"
"""File that identifies a run's folder; a model's folder also has a config.json."""
REPORT = "report.html"
RUN_CONFIG = "config.json"
TRACE = "trace.json"
WANDB_ID = "wandb-id.txt"
# Folders:
CARRIED = "hugging_face"
CHECKPOINTS = "checkpoints"
PROFILER = "profiler"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
"""Folder name used by the wandb library."""


class RunDirectory:
    """The folder of a run; every file and every appended line in it is complete.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, wanted: str | Path) -> Self:
        """Create the folder; if it exists, create the first free one of `NAME-2`, `NAME-3` and so on.

        Raises:
            InvalidInputError: The folder cannot be created (code `file_unwritable`).
        """
        first = named_folder(wanted)
        number = 1
        while True:
            path = first if number == 1 else first.with_name(f"{first.name}-{number}")
            try:
                path.mkdir(parents=True)
            except (OSError, ValueError) as error:
                # FileExistsError also arises if a parent is a dangling link.
                if not (isinstance(error, FileExistsError) and os.path.lexists(path)):
                    raise not_made(path, error) from error
                number += 1
            else:
                return cls(path)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file atomically: it appears under its name only when it is complete.

        Raises:
            HydraulisError: The file cannot be written (code `file_unwritable`).
        """
        path = self.path / name
        with writing(path), replace_file(path) as unfinished:
            unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def folder(self, name: str) -> Self:
        """Return a subfolder to write in; it is created if it is absent.

        Raises:
            HydraulisError: The subfolder cannot be created (code `file_unwritable`).
        """
        path = self.path / name
        with writing(path):
            if path.is_symlink():
                raise OSError(errno.ELOOP, f"{path} is a symbolic link")
            path.mkdir(exist_ok=True)
        return type(self)(path)

    def append(self, name: str, line: str) -> None:
        """Append a line to a file; on an error the file keeps its former length.

        Raises:
            HydraulisError: The line cannot be written (code `file_unwritable`).
        """
        path = self.path / name
        missing = memoryview((line + "\n").encode())
        with writing(path), open_unlinked(path, "ab", buffering=0) as file:
            end = file.tell()
            try:
                while missing:
                    missing = missing[file.write(missing) :]
            except OSError:
                file.truncate(end)
                raise

    def sync(self) -> None:
        """Wait until the disk has the appended lines.

        Raises:
            HydraulisError: A file cannot be written (code `file_unwritable`).
        """
        for name in (METRICS, PLANS, TIMES, CALIBRATIONS, EVALUATIONS, SAMPLES):
            path = self.path / name
            if path.is_file():
                with writing(path), open_unlinked(path, "ab") as file:
                    os.fsync(file.fileno())

    def keep_lines(self, name: str, lines: int) -> None:
        """Truncate a file after its first `lines` complete lines; an absent file is left absent.

        Raises:
            HydraulisError: The file cannot be written (code `file_unwritable`).
        """
        path = self.path / name
        if not path.exists():
            return
        with writing(path), open_unlinked(path, "r+b") as file:
            end = 0
            for _ in range(lines):
                if not file.readline().endswith(b"\n"):
                    break
                end = file.tell()
            file.truncate(end)

    def remove(self, name: str) -> None:
        """Remove a file.

        Raises:
            HydraulisError: The file cannot be removed (code `file_unwritable`).
        """
        path = self.path / name
        with writing(path):
            path.unlink()


def named_folder(wanted: str | Path) -> Path:
    """Return the path of `output.directory`.

    Raises:
        InvalidInputError: The path has no last name that a number can be appended to (code
            `file_unwritable`).
    """
    path = Path(wanted)
    if path.name in ("", ".."):
        message = f"output.directory = {str(wanted)!r} has no name of its own; name a new folder"
        raise InvalidInputError(message, code="file_unwritable")
    return path


def not_made(path: Path, reason: object) -> InvalidInputError:
    """Build the error for a run's folder that cannot be created."""
    message = f"output.directory = {str(path)!r} cannot be made: {reason}; name another folder"
    return InvalidInputError(message, code="file_unwritable")


@contextmanager
def writing(path: Path, setting: str = "output.directory") -> Iterator[None]:
    """Convert an OSError of the block into an error that names the path.

    Args:
        path: Path of the file.
        setting: Setting that chooses the disk.

    Raises:
        HydraulisError: The block raised an OSError (code `file_unwritable`).
    """
    try:
        yield
    except OSError as error:
        raise unwritten(path, error, setting) from error


def unwritten(path: str | Path, error: BaseException, setting: str = "output.directory") -> HydraulisError:
    """Build the error for a file whose writing failed, with a remedy of the cause.

    Args:
        path: Path of the file.
        error: Error of the writing.
        setting: Setting that chooses the disk.
    """
    number, reason = None, f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        number, reason = error.errno, error.strerror or str(error)
    if number == errno.ELOOP:
        remedy = "remove the link"
    elif number in (errno.EACCES, errno.EPERM):
        remedy = f"change its permissions or those of its folder, or set {setting} to another folder"
    elif number == errno.EROFS:
        remedy = f"mount its disk for writing, or set {setting} to another disk"
    else:
        remedy = f"make room, or set {setting} to another disk"
    return HydraulisError(f"{path} cannot be written: {reason}; {remedy}", code="file_unwritable")


def require_run(path: Path) -> None:
    """Check that a path is the folder of a run.

    Raises:
        InvalidInputError: The path is no folder of a run (code `run_unreadable`), or the system does not let
            it be searched (`file_unreadable`).
    """
    if not is_regular_file(path / PROFILE):
        raise not_a_run(path, f"it has no {PROFILE}" if is_folder(path) else why_no_folder(path))


def why_no_folder(path: Path) -> str:
    """Return the reason why a path is not a folder."""
    return f"{path} is no folder" if path.exists() else f"there is no folder {path.absolute()}"


def not_a_run(path: Path, why: str) -> InvalidInputError:
    """Build the error for a folder, or a file in one, that no run of this version has written."""
    message = f"'{path}' is not the folder of a run of this version: {why}; name the folder of a run"
    return InvalidInputError(message, code="run_unreadable")
