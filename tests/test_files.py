"""A result appears as a whole file or not at all, also behind a link, and replaces only regular files."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from helpers import refused, synced, unsearched
from hydraulis.files import (
    check_files_writable,
    is_at,
    is_folder,
    is_regular_file,
    lock_file,
    replace_file,
    unreadable_error,
    write_whole_file,
)


def test_a_file_and_a_folder_are_told_apart_from_what_is_absent(tmp_path: Path) -> None:
    file, fifo, folder = tmp_path / "file", tmp_path / "fifo", tmp_path / "folder"
    file.touch()
    os.mkfifo(fifo)
    folder.mkdir()
    for name, target in (("link", file), ("dangling", tmp_path / "gone"), ("loop", tmp_path / "loop")):
        (tmp_path / name).symlink_to(target)
    names = ("file", "fifo", "folder", "link", "dangling", "loop", "gone", "file/x", "nul\0")
    assert [name for name in names if is_regular_file(tmp_path / name)] == ["file", "link"]
    assert [name for name in names if is_folder(tmp_path / name)] == ["folder"]
    with unsearched(tmp_path):
        for look in (is_regular_file, is_folder):
            with refused("file_unreadable", file, "Permission denied"):
                look(file)


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


def test_the_first_failure_is_raised_where_the_clean_up_fails_too(tmp_path: Path) -> None:
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


def test_an_existing_temporary_file_is_not_written(tmp_path: Path) -> None:
    path, outside = tmp_path / "file", tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / ".file.unfinished").symlink_to(outside)
    with replace_file(path) as unfinished:
        unfinished.write_text("new")
    assert (path.read_text(), path.is_symlink(), outside.read_text()) == ("new", False, "precious")


@pytest.mark.parametrize("there", [True, False])
def test_a_write_through_a_link_keeps_the_link(tmp_path: Path, *, there: bool) -> None:
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
def test_a_path_other_than_a_regular_file_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
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
    with refused("file_unwritable", path):
        write(path)
    assert [(one.name, one.lstat().st_mode) for one in sorted(tmp_path.iterdir())] == before


def test_an_unwritable_file_is_refused_before_the_work(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"old")
    check_files_writable(None, tmp_path / "new", there)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert there.read_bytes() == b"old"
    for path in (tmp_path / "missing" / "file", there / "file", tmp_path):
        with refused("file_unwritable", path):
            check_files_writable(None, path)
    with refused("file_unwritable", tmp_path / "missing"):
        check_files_writable(tmp_path / "missing" / "file")


def test_two_results_in_one_file_are_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    with refused("file_unwritable", link):
        check_files_writable(tmp_path / "file", None, link)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\x1f\x8b\x08", "compressed (gzip)"),
        (b"PAR1\x15\x00\xb9", "byte 6 is not UTF-8, and the file has bytes 0"),
        (b"caf\xe9", "byte 3 is not UTF-8; save"),
    ],
)
def test_compressed_binary_and_wrongly_encoded_files_are_distinguished(content: bytes, names: str) -> None:
    with pytest.raises(UnicodeDecodeError) as wrong:
        content.decode()
    error = unreadable_error(Path("lengths.txt"), wrong.value)
    assert error.code == "file_unreadable"
    assert "'lengths.txt'" in str(error)
    assert names in str(error)


@pytest.mark.parametrize(
    ("number", "is_without_locks"),
    [
        (errno.ENOLCK, True),
        (errno.EOPNOTSUPP, True),
        (errno.ENOSYS, True),
        (errno.EBADF, False),
        (errno.EIO, False),
    ],
)
def test_only_a_disk_without_locks_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_without_locks: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with (tmp_path / "file").open("wb") as file:
        if is_without_locks:
            lock_file(file, fcntl.LOCK_EX)
            return
        with pytest.raises(OSError, match=os.strerror(number)):
            lock_file(file, fcntl.LOCK_EX)


def test_an_open_file_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        assert is_at(file, path)
        # As NFS does with an open file that is removed.
        path.rename(tmp_path / ".nfs1")
        assert not is_at(file, path)
        path.touch()
        assert not is_at(file, path)
