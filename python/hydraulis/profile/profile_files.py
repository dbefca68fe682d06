"""The cost profiles in a run directory: the current profile, and the replaced profiles of earlier steps."""

import re

from hydraulis._core import CostProfile
from hydraulis.runtime.records.run_directory import PROFILE, RunDirectory

_REPLACED = re.compile(r"profile-(\d{8,})\.json")


def last_step_of(name: str) -> int | None:
    """Return the last step planned with the replaced profile in this file; None for any other file name."""
    match = _REPLACED.fullmatch(name)
    return int(match[1]) if match else None


def write_profile(directory: RunDirectory, profile: CostProfile, completed: int) -> None:
    """Write the current profile; a different profile of earlier steps is renamed first.

    A replaced profile becomes `profile-STEP.json`, named after the last step planned with it. Records of
    steps after `completed` are discarded when a run resumes, so replaced profiles of only such steps are
    removed.

    Args:
        directory: Directory of the run.
        profile: Profile of all further plans.
        completed: Number of completed steps; 0 at the start of a run.

    Raises:
        HydraulisError: A file cannot be written (code `file_unwritable`).
    """
    replaced, text = f"profile-{completed:08}.json", (profile.to_json() + "\n").encode()
    later = sorted(path for path in directory.path.glob("profile-*.json") if path.name >= replaced)
    previous_file = (later or [directory.path / PROFILE])[0]
    previous = previous_file.read_bytes() if previous_file.exists() else text
    if previous != text:
        directory.write(replaced, previous)
    directory.write(PROFILE, text)
    for path in later:
        if previous == text or path.name != replaced:
            directory.remove(path.name)
