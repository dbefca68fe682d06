"""Files that are read and written: one way to refuse those that cannot be, and none half-written."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hydraulis.errors import InvalidInputError
from hydraulis.text.paths import describe_read_error

DECOMPRESS = "expand it first, and give the file that comes out"
_SAVE = "save it as UTF-8 text"
# What compressed files begin with.
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


def unreadable_error(path: Path, error: OSError | UnicodeDecodeError) -> InvalidInputError:
    """Make the error for a file that cannot be opened, or that is not the text it should be."""
    if isinstance(error, UnicodeDecodeError):
        kind = _compression(error.object)
        if kind:
            why = f"it is compressed ({kind}); {DECOMPRESS}"
        elif b"\0" in error.object:
            why = f"byte {error.start} is not UTF-8, and others are 0: it is no text; give a file that is"
        else:
            why = f"byte {error.start} is not UTF-8; {_SAVE}"
    else:
        why = f"{describe_read_error(path, error)}; check the path and its permissions"
    message = f"file '{path}' cannot be read: {why}"
    return InvalidInputError(message, code="file_unreadable")


def _compression(beginning: bytes) -> str | None:
    return next((kind for mark, kind in _COMPRESSED.items() if beginning.startswith(mark)), None)


@contextmanager
def replace_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a path to write a file to, which gets the name that it is to have when the block has ended well.

    Else nothing is left of it, and what has the name stays as it is.

    Args:
        path: that the file is to have, in a folder that is there.
        durable: whether the disk has the file before it gets its name, and the name after that, so that it is
            the old file or the whole new one even after the power went.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        yield unfinished
        if durable:
            _sync(unfinished)
        unfinished.replace(path)
        if durable:
            _sync(path.parent)
    except BaseException:
        # What failed is told, not that its remains could not be removed either.
        with suppress(OSError):
            unfinished.unlink()
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def write_whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name when the block has ended well, and else not at all.

    A link stays one, and the file is written where it points to.

    Raises:
        InvalidInputError: it cannot be written (code `file_unwritable`); before the block if it can.
    """
    target = _target(path)
    try:
        with replace_file(target) as unfinished, unfinished.open("wb") as file:
            yield file
    except OSError as error:
        raise _unwritable(path, _why(path, error)) from error


def check_files_writable(*paths: Path | None) -> None:
    """Refuse files that cannot be written, before the work whose results they are to hold.

    Args:
        paths: of files that `write_whole_file` is to write; None for what was not asked for.

    Raises:
        InvalidInputError: one of them cannot be written, or is the same as another (code `file_unwritable`).
    """
    targets = set()
    for path in paths:
        if path is not None:
            try:
                target = _target(path)
                check_folder_writable(target.parent)
            except OSError as error:
                raise _unwritable(path, _why(path, error)) from error
            if target in targets:
                raise _unwritable(path, "it is to hold two results")
            targets.add(target)


def nearest_existing(path: Path) -> Path:
    """Give a path if anything has its name, else the nearest above it: where its folders are to be made.

    Raises:
        OSError: the file system takes no such name.
    """
    return next(one for one in (path, *path.absolute().parents) if _is_there(one))


def check_folder_writable(folder: Path) -> None:
    """Make a folder in it, and remove that again.

    Raises:
        OSError: it is no folder, or nothing can be made in it.
    """
    # Not `os.access`: to root it grants what file systems such as /proc refuse.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".hydraulis-"):
        pass


def _is_there(path: Path) -> bool:
    # Not `exists`: to it a link to nowhere is nothing, and which errors it raises depends on the Python.
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _target(path: Path) -> Path:
    """Follow links to the file that is to be written."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not target.is_file():
        # A device or a pipe would be replaced by a file.
        raise _unwritable(path, "it is no file")
    return target


def _why(path: Path, error: OSError) -> object:
    folder = path.parent
    if isinstance(error, FileNotFoundError) and not folder.exists():
        return f"there is no folder {folder.absolute()}"
    return error.strerror or error


def _unwritable(path: Path, why: object) -> InvalidInputError:
    message = f"file '{path}' cannot be written: {why}; name another file, make its folder, or make room"
    return InvalidInputError(message, code="file_unwritable")
