"""Files that a resumed run replaces, and cannot read."""

from pathlib import Path

from helpers import refused
from hydraulis.runtime.records.replaced_files import write_replacing
from hydraulis.runtime.records.run_directory import RunDirectory


def test_a_folder_or_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with refused("file_unreadable", tmp_path / "gone"):
        write_replacing(RunDirectory(tmp_path / "gone"), "profile.json", b"{}", 1)
    (tmp_path / "profile.json").mkdir()
    with refused("file_unreadable", tmp_path / "profile.json"):
        write_replacing(RunDirectory(tmp_path), "profile.json", b"{}", 1)
