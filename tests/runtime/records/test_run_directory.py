"""A run's folder is a new one, no file in it is half-written, and it has the profiles of all its steps."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from helpers import file_sizes_below, refused, unsearched
from hydraulis import CostProfile
from hydraulis.runtime.records.replaced_files import write_profile
from hydraulis.runtime.records.run_directory import PROFILE, RunDirectory, require_run, writing
from profiles import made_up_profile


def test_an_existing_folder_or_file_is_never_touched(tmp_path: Path) -> None:
    wanted = tmp_path / "deep" / "run"
    first = RunDirectory.create(wanted)
    first.write("metrics.jsonl", "precious")
    (tmp_path / "deep" / "run-2").write_text("a file of somebody")
    (tmp_path / "deep" / "run-3").symlink_to(tmp_path / "nowhere")
    second = RunDirectory.create(str(wanted))
    assert first.path == wanted
    assert second.path == tmp_path / "deep" / "run-4"
    assert list(second.path.iterdir()) == []
    assert (wanted / "metrics.jsonl").read_text() == "precious"
    assert (tmp_path / "deep" / "run-2").read_text() == "a file of somebody"


def test_the_folder_of_a_run_is_told_from_another_and_from_one_that_may_not_be_searched(
    tmp_path: Path,
) -> None:
    with refused("run_unreadable", tmp_path, PROFILE):
        require_run(tmp_path)
    with refused("run_unreadable", tmp_path / "gone", "no folder"):
        require_run(tmp_path / "gone")
    (tmp_path / PROFILE).touch()
    require_run(tmp_path)
    with unsearched(tmp_path), refused("file_unreadable", tmp_path / PROFILE, "Permission denied"):
        require_run(tmp_path)


def test_a_name_with_a_dot_keeps_it(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run.v1")
    assert RunDirectory.create(tmp_path / "run.v1").path.name == "run.v1-2"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["file/run", "link/run", "nul\0/run"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "away")
    with refused("file_unwritable", "output.directory"):
        RunDirectory.create(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", [".", "/", "..", "../.."])
def test_a_folder_without_a_name_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with refused("file_unwritable", "output.directory"):
        RunDirectory.create(name)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_text_and_bytes_are_written_and_replaced(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    assert directory.write("a.json", "first ü\n") == directory.path / "a.json"
    directory.write("a.json", "ü\n")
    directory.write("b.bin", b"\x00\xff")
    assert (directory.path / "a.json").read_bytes() == "ü\n".encode()
    assert (directory.path / "b.bin").read_bytes() == b"\x00\xff"
    assert sorted(path.name for path in directory.path.iterdir()) == ["a.json", "b.bin"]


def test_a_write_that_fails_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    directory.write("a.json", "old")

    def fail_half_way(path: Path, content: Any) -> int:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        message = "no space left on device"
        raise OSError(message)

    monkeypatch.setattr(Path, "write_bytes", fail_half_way)
    for name in ("a.json", "new.json"):
        with refused("file_unwritable", "no space left"):
            directory.write(name, "a longer new content")
    assert (directory.path / "a.json").read_text() == "old"
    assert [path.name for path in directory.path.iterdir()] == ["a.json"]


def test_a_subfolder_is_written_like_the_run_folder(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    for text in ("old", "new"):
        directory.folder("model").write("a.json", text)
        assert (directory.path / "model" / "a.json").read_text() == text
    with refused("file_unwritable", "a.json"):
        directory.folder("model").folder("a.json")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "change its permissions"),
        (errno.EPERM, "change its permissions"),
        (errno.EROFS, "mount its disk for writing"),
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
    ],
)
def test_the_remedy_of_a_failed_write_is_that_of_its_cause(tmp_path: Path, number: int, remedy: str) -> None:
    reason = os.strerror(number)
    with refused("file_unwritable", tmp_path / "log", f"{reason}; {remedy}", "output.directory") as caught:  # noqa: SIM117
        with writing(tmp_path / "log"):
            raise OSError(number, reason)
    assert ("make room" in str(caught.value)) == (remedy == "make room")


def test_a_line_that_does_not_fit_leaves_the_lines_before_it_whole(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    directory.append("log", "first")
    with file_sizes_below(100_000), refused("file_unwritable", "log"):
        directory.append("log", "x" * 200_000)
    directory.append("log", "last")
    assert (directory.path / "log").read_text() == "first\nlast\n"


def test_lines_are_appended_and_can_be_read_at_once(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    long = "x" * 100_000
    for number, line in enumerate(["one", long, "ü"], start=1):
        directory.append("log", line)
        assert len((directory.path / "log").read_text(encoding="utf-8").splitlines()) == number
    assert (directory.path / "log").read_text(encoding="utf-8") == f"one\n{long}\nü\n"


def test_a_file_is_cut_behind_its_first_lines_and_the_last_whole_one(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    directory.keep_lines("log", 3)
    assert not (directory.path / "log").exists()
    for line in ("one", "two", "three"):
        directory.append("log", line)
    directory.keep_lines("log", 2)
    assert (directory.path / "log").read_text() == "one\ntwo\n"
    (directory.path / "log").write_text("one\ntwo\nthr")
    directory.keep_lines("log", 3)
    assert (directory.path / "log").read_text() == "one\ntwo\n"
    directory.keep_lines("log", 0)
    assert (directory.path / "log").read_text() == ""


def test_no_link_leads_a_write_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "model").mkdir(parents=True)
    for name in ("log", "text"):
        (outside / name).write_text("precious\n")
    directory = RunDirectory.create(tmp_path / "run")
    for name in ("log", "text", ".a.json.unfinished", "model"):
        (directory.path / name).symlink_to(outside / name.strip("."))
    for write in (
        lambda: directory.append("log", "more"),
        lambda: directory.keep_lines("log", 0),
        lambda: directory.folder("model"),
    ):
        with refused("file_unwritable", "symbolic link"):
            write()
    # A file that is written whole takes the link's place.
    for name in ("text", "a.json"):
        directory.write(name, "new")
        assert (directory.path / name).read_text() == "new"
    assert {path.name: path.is_dir() or path.read_text() for path in outside.iterdir()} == {
        "model": True,
        "log": "precious\n",
        "text": "precious\n",
    }


ONE, OTHER, THIRD = (made_up_profile({"<1>": cap}) for cap in (64, 128, 256))


def profiles(folder: Path) -> dict[str, CostProfile]:
    return {path.name: CostProfile.from_json(path.read_text()) for path in folder.iterdir()}


def test_a_replaced_profile_is_named_after_its_last_step(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert not write_profile(directory, ONE, 0)
    assert profiles(tmp_path) == {"profile.json": ONE}
    assert not write_profile(directory, ONE, 21)
    assert profiles(tmp_path) == {"profile.json": ONE}
    assert write_profile(directory, OTHER, 21)
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
