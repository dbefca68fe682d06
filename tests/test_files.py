"""Files of results appear whole or not at all, behind links too, and replace nothing but files."""

import os
import re
from pathlib import Path

import pytest

from helpers import synced
from hydraulis import InvalidInputError
from hydraulis.files import check_files_writable, replace_file, unreadable_error, write_whole_file


def write(path: Path) -> None:
    with write_whole_file(path) as file:
        file.write(b"new")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_a_file_is_replaced_whole_or_stays_as_it_was(
    tmp_path: Path, error: BaseException, *, durable: bool
) -> None:
    path = tmp_path / "file"
    for text in ("first", "second"):
        with replace_file(path, durable=durable) as unfinished:
            unfinished.write_text(text)
        assert path.read_text() == text

    def fail_half_way() -> None:
        with replace_file(path, durable=durable) as unfinished:
            unfinished.write_text("ne")
            raise error

    with pytest.raises(type(error)):
        fail_half_way()
    assert path.read_text() == "second"
    assert list(tmp_path.iterdir()) == [path]


def test_what_failed_is_told_where_nothing_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ZeroDivisionError), replace_file(tmp_path / "file" / "below"):
        raise ZeroDivisionError


def test_a_durable_file_is_on_the_disk_before_and_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    found = synced(monkeypatch, path)
    with replace_file(path) as unfinished:
        unfinished.write_text("new")
    assert found == []
    path.unlink()
    with replace_file(path, durable=True) as unfinished:
        unfinished.write_text("new")
    assert found == [(".file.unfinished", False), (tmp_path.name, True)]


@pytest.mark.parametrize("there", [True, False])
def test_behind_a_link_the_file_is_written_and_the_link_stays(tmp_path: Path, *, there: bool) -> None:
    (tmp_path / "results").mkdir()
    file = tmp_path / "results" / "file"
    if there:
        file.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(Path("results") / "file")
    write(link)
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "results"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "link to a pipe"])
def test_what_is_no_file_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        os.mkfifo(tmp_path / "pipe" if kind == "link to a pipe" else path)
        if kind == "link to a pipe":
            path.symlink_to(tmp_path / "pipe")
    before = [(one.name, one.lstat().st_mode) for one in sorted(tmp_path.iterdir())]
    with pytest.raises(InvalidInputError, match=r"'.*there' cannot be written: it is no file") as caught:
        write(path)
    assert caught.value.code == "file_unwritable"
    assert [(one.name, one.lstat().st_mode) for one in sorted(tmp_path.iterdir())] == before


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"old")
    check_files_writable(None, tmp_path / "new", there)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert there.read_bytes() == b"old"
    for path in (tmp_path / "missing" / "file", there / "file", tmp_path):
        with pytest.raises(InvalidInputError, match=f"'{path}' cannot be written") as caught:
            check_files_writable(None, path)
        assert caught.value.code == "file_unwritable"
    with pytest.raises(InvalidInputError, match=f"there is no folder {tmp_path / 'missing'}; name another"):
        check_files_writable(tmp_path / "missing" / "file")


def test_two_results_do_not_go_into_one_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    says = f"'{link}' cannot be written: it is to hold two results"
    with pytest.raises(InvalidInputError, match=says) as caught:
        check_files_writable(tmp_path / "file", None, link)
    assert caught.value.code == "file_unwritable"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x1f\x8b\x08", r"it is compressed \(gzip\); expand it first"),
        (b"PAR1\x15\x00\xb9", "byte 6 is not UTF-8, and others are 0: it is no text; give a file that is"),
        (b"caf\xe9", "byte 3 is not UTF-8; save it as UTF-8 text"),
    ],
)
def test_a_file_that_is_no_text_is_told_from_one_in_another_encoding(content: bytes, says: str) -> None:
    with pytest.raises(UnicodeDecodeError) as wrong:
        content.decode()
    error = unreadable_error(Path("lengths.txt"), wrong.value)
    assert error.code == "file_unreadable"
    assert re.search(f"^file 'lengths.txt' cannot be read: {says}", str(error))
