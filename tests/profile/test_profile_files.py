"""A run directory has the profiles of all recorded steps, and no others."""

from pathlib import Path

from hydraulis import CostProfile
from hydraulis.profile.profile_files import write_profile
from hydraulis.runtime.records.run_directory import RunDirectory
from profiles import made_up_profile

ONE, OTHER, THIRD = (made_up_profile({"<1>": cap}) for cap in (64, 128, 256))


def profiles(folder: Path) -> dict[str, CostProfile]:
    return {path.name: CostProfile.from_json(path.read_text()) for path in folder.iterdir()}


def test_a_replaced_profile_is_named_after_its_last_step(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_profile(directory, ONE, 0)
    assert profiles(tmp_path) == {"profile.json": ONE}
    write_profile(directory, ONE, 21)
    assert profiles(tmp_path) == {"profile.json": ONE}
    write_profile(directory, OTHER, 21)
    assert profiles(tmp_path) == {"profile.json": OTHER, "profile-00000021.json": ONE}
    write_profile(directory, THIRD, 40)
    replaced = {"profile-00000021.json": ONE, "profile-00000040.json": OTHER}
    assert profiles(tmp_path) == {"profile.json": THIRD, **replaced}


def test_profiles_of_discarded_steps_are_removed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for profile, step in ((ONE, 0), (OTHER, 21), (THIRD, 40)):
        write_profile(directory, profile, step)
    # Back to a step of the first profile.
    write_profile(directory, THIRD, 15)
    assert profiles(tmp_path) == {"profile.json": THIRD, "profile-00000015.json": ONE}
    # Resumed again at the same step, before another checkpoint.
    write_profile(directory, OTHER, 15)
    assert profiles(tmp_path) == {"profile.json": OTHER, "profile-00000015.json": ONE}
    write_profile(directory, ONE, 15)
    assert profiles(tmp_path) == {"profile.json": ONE}


def test_an_unreadable_profile_stays_unchanged(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (tmp_path / "profile.json").write_bytes(b"\xff\0")
    write_profile(directory, ONE, 21)
    assert CostProfile.from_json((tmp_path / "profile.json").read_text()) == ONE
    assert (tmp_path / "profile-00000021.json").read_bytes() == b"\xff\0"
