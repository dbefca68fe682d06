"""The cost profiles in a run's folder: that of its plans now, and those that served earlier steps."""

import re

from hydraulis._core import CostProfile
from hydraulis.runtime.records.run_directory import PROFILE, RunDirectory

_KEPT = re.compile(r"profile-(\d{8,})\.json")


def served_until(name: str) -> int | None:
    """Give the last step that the profile of this file's name served; None if it is no such file."""
    match = _KEPT.fullmatch(name)
    return int(match[1]) if match else None


def write_profile(directory: RunDirectory, profile: CostProfile, completed: int) -> None:
    """Write what plans are made with from now on; another profile that served until then is kept.

    Kept is `profile-STEP.json`, named after the last step that it served. Steps after `completed` are
    forgotten, and with them the profiles that served no others.

    Args:
        directory: of the run.
        profile: that serves from now on.
        completed: how many steps are done; 0 where the run begins.

    Raises:
        HydraulisError: a file cannot be written (code `file_unwritable`).
    """
    kept, text = f"profile-{completed:08}.json", profile.to_json() + "\n"
    later = sorted(path for path in directory.path.glob("profile-*.json") if path.name >= kept)
    served = (later or [directory.path / PROFILE])[0]
    before = served.read_text(encoding="utf-8") if served.exists() else text
    if before != text:
        directory.write(kept, before)
    directory.write(PROFILE, text)
    for path in later:
        if before == text or path.name != kept:
            directory.remove(path.name)
