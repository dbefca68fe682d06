"""Files of a run's folder that a resumed run replaces, named after the last step that they hold for."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import eq
from pathlib import Path

from hydraulis._core import CostProfile
from hydraulis.files import unreadable_error
from hydraulis.runtime.records.run_directory import PROFILE, RunDirectory

_REPLACED = re.compile(r"(.+)-(\d{8,})(\.[a-z]+)")


def replaced_name(name: str, step: int) -> str:
    """Return the name of a file that was replaced after a step.

    >>> replaced_name("profile.json", 21)
    'profile-00000021.json'
    """
    path = Path(name)
    return f"{path.stem}-{step:08}{path.suffix}"


def replaced_step(name: str, replaced: str) -> int | None:
    """Return the step after which a file was replaced; None if `replaced` is no such name of it.

    >>> replaced_step("profile.json", "profile-00000021.json")
    21
    """
    match = _REPLACED.fullmatch(replaced)
    return int(match[2]) if match and match[1] + match[3] == name else None


def write_profile(directory: RunDirectory, profile: CostProfile, completed: int) -> bool:
    """Write the current profile, and return whether it replaces a different one; see `write_replacing`."""
    return write_replacing(directory, PROFILE, (profile.to_json() + "\n").encode(), completed)


def write_replacing(
    directory: RunDirectory,
    name: str,
    text: bytes,
    completed: int,
    is_same: Callable[[bytes, bytes], bool] = eq,
) -> bool:
    """Write a file of all further steps; a different one of earlier steps is renamed first.

    Records of steps after `completed` are discarded when a run resumes, so replaced files of only such steps
    are removed.

    Args:
        directory: Directory of the run.
        name: Name of the file.
        text: Content of the file.
        completed: Number of completed steps; 0 at the start of a run.
        is_same: Whether two contents are the same for the steps.

    Returns:
        Whether the completed steps had a different file.

    Raises:
        InvalidInputError: The folder or a file of it cannot be read (code `file_unreadable`).
        HydraulisError: A file cannot be written (code `file_unwritable`).
    """
    with _reading(directory.path):
        steps = {replaced_step(name, path.name): path for path in directory.path.iterdir()}
    later = [steps[step] for step in sorted(step for step in steps if step is not None and step >= completed)]
    previous_file = (later or [directory.path / name])[0]
    with _reading(previous_file):
        previous = previous_file.read_bytes() if previous_file.exists() else text
    replaced = replaced_name(name, completed)
    is_kept = not is_same(previous, text)
    if is_kept:
        directory.write(replaced, previous)
    directory.write(name, text)
    for path in later:
        if not is_kept or path.name != replaced:
            directory.remove(path.name)
    return is_kept


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable_error(path, error) from error
