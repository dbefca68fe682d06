"""A run's folder keeps the profiles of earlier steps, and none that served no step on record."""

from pathlib import Path

from hydraulis import CostProfile
from hydraulis.profile.served import write_profile
from hydraulis.runtime.records.run_directory import RunDirectory
from profiles import made_up_profile

ONE, OTHER, THIRD = (made_up_profile({"<1>": cap}) for cap in (64, 128, 256))


def profiles(folder: Path) -> dict[str, CostProfile]:
    return {path.name: CostProfile.from_json(path.read_text()) for path in folder.iterdir()}


def test_a_profile_that_is_replaced_is_kept_by_the_step_it_served_until(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_profile(directory, ONE, 0)
    assert profiles(tmp_path) == {"profile.json": ONE}
    write_profile(directory, ONE, 21)
    assert profiles(tmp_path) == {"profile.json": ONE}
    write_profile(directory, OTHER, 21)
    assert profiles(tmp_path) == {"profile.json": OTHER, "profile-00000021.json": ONE}
    write_profile(directory, THIRD, 40)
    kept = {"profile-00000021.json": ONE, "profile-00000040.json": OTHER}
    assert profiles(tmp_path) == {"profile.json": THIRD, **kept}


def test_what_served_forgotten_steps_alone_goes_with_them(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for profile, step in ((ONE, 0), (OTHER, 21), (THIRD, 40)):
        write_profile(directory, profile, step)
    # Back to a step that the first one served.
    write_profile(directory, THIRD, 15)
    assert profiles(tmp_path) == {"profile.json": THIRD, "profile-00000015.json": ONE}
    # Resumed again where it had been, before another checkpoint.
    write_profile(directory, OTHER, 15)
    assert profiles(tmp_path) == {"profile.json": OTHER, "profile-00000015.json": ONE}
    write_profile(directory, ONE, 15)
    assert profiles(tmp_path) == {"profile.json": ONE}
