"""Writes files whole and inside their folder, reads their errors with one wording, digests and maps them.

A digest is BLAKE2b with 128 bits, from the standard library. It detects bytes that a disk, a copy or a person
changed, and needs no special instructions of the processor; log.md has its measured rate.
"""

import errno
import fcntl
import hashlib
import json
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.text.documents import describe_read_error

DECOMPRESS = "decompress it first, and give the result"
# Errors of `flock` on a disk that knows no locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# Remedies of errors that do not depend on the path.
_READ_REMEDIES = {
    errno.EIO: "check its disk",
    errno.ESTALE: "check its disk, and try again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
}
# The first bytes of compressed files.
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


def unreadable_error(path: Path, error: OSError | UnicodeDecodeError) -> InvalidInputError:
    """Make the error for a file that cannot be opened, or whose content is not UTF-8 text."""
    if isinstance(error, UnicodeDecodeError):
        kind = _compression(error.object)
        if kind:
            reason = f"it is compressed ({kind}); {DECOMPRESS}"
        elif b"\0" in error.object:
            reason = f"byte {error.start} is not UTF-8, and the file has bytes 0: give a text file"
        else:
            reason = f"byte {error.start} is not UTF-8; save it as UTF-8 text"
    else:
        remedy = _READ_REMEDIES.get(error.errno or 0, "check the path and its permissions")
        reason = f"{describe_read_error(path, error)}; {remedy}"
    message = f"file '{path}' cannot be read: {reason}"
    return InvalidInputError(message, code="file_unreadable")


def _compression(content: bytes) -> str | None:
    return next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), None)


def open_unlinked(path: Path, mode: str, buffering: int = -1) -> BinaryIO:
    """Open a binary file of a folder that the package owns; a pipe in its place does not block.

    Args:
        path: Path of the file.
        mode: Mode of `open`, with `b`.
        buffering: Size of the buffer, as for `open`.

    Raises:
        OSError: The file cannot be opened; `ELOOP` if it is a symbolic link, which could lead out of the
            folder.
    """
    return cast("BinaryIO", open(path, mode, buffering, opener=_open_unlinked))


def _open_unlinked(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, f"{os.fspath(path)} is a symbolic link") from error


def is_regular_file(path: Path) -> bool:
    """Return whether a path is that of a regular file; links are followed.

    Unlike `Path.is_file`, it is the same in every version of Python where the folder may not be searched.

    Raises:
        InvalidInputError: The system does not tell (code `file_unreadable`).
    """
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Return whether a path is that of a folder; links are followed.

    Raises:
        InvalidInputError: The system does not tell (code `file_unreadable`).
    """
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """Return the type and permissions of a file; 0 if there is none."""
    try:
        return path.stat().st_mode
    except ValueError:
        # No path has a byte 0.
        return 0
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0
        raise unreadable_error(path, error) from error


def read_regular(path: Path) -> bytes:
    """Read a file of a folder that the package owns; a pipe in its place does not block.

    Raises:
        OSError: The file cannot be read, or is no regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return file.read()


def lock_file(file: BinaryIO, kind: int) -> None:
    """Lock an open file until it is closed, without waiting; on a disk without locks, do nothing.

    Args:
        file: The open file. NFS locks only a file that is open for reading (`LOCK_SH`) or for writing
            (`LOCK_EX`), and refuses another one with `EBADF` (flock(2)).
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.

    Raises:
        BlockingIOError: Another open file has a lock that excludes this one.
        OSError: The file cannot be locked, although its disk may have locks.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise


def is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether an open file still has a name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def replace_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Replace a file atomically: yield a temporary path, which takes the file's name after the block.

    If the block fails, the temporary file is removed and the old file stays. A link under either name is
    replaced, not followed.

    Args:
        path: Path of the file, in an existing folder.
        durable: Whether to wait until the disk has the content before the renaming, and the new name after
            it. A power failure then leaves either the old file or the whole new one.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    # A killed process leaves a file there; a link there could lead out of the folder.
    with suppress(OSError):
        unfinished.unlink()
    try:
        yield unfinished
        if durable:
            sync(unfinished)
        unfinished.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        # The first failure matters more than one of the clean-up.
        with suppress(OSError):
            unfinished.unlink()
        raise


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or a folder's entries.

    Raises:
        OSError: The path cannot be opened or written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def write_whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only after the block succeeds.

    A symbolic link is followed: its target is replaced and the link stays.

    Raises:
        InvalidInputError: The file cannot be written (code `file_unwritable`); raised before the block
            where possible.
    """
    target = _target(path)
    try:
        with replace_file(target) as unfinished, unfinished.open("wb") as file:
            yield file
    except OSError as error:
        raise _unwritable(path, _reason(path, error)) from error


def check_files_writable(*paths: Path | None) -> None:
    """Check that files can be written, before the work that computes their contents.

    Args:
        paths: Paths of later results; None for a result that is not requested.

    Raises:
        InvalidInputError: A file cannot be written, or two paths are the same file (code `file_unwritable`).
    """
    targets = set()
    for path in paths:
        if path is not None:
            try:
                target = _target(path)
                check_folder_writable(target.parent)
            except OSError as error:
                raise _unwritable(path, _reason(path, error)) from error
            if target in targets:
                raise _unwritable(path, "another result has the same file")
            targets.add(target)


def nearest_existing(path: Path) -> Path:
    """Return the path if it exists, else its nearest existing parent, in which missing folders can be made.

    Raises:
        OSError: The file system does not accept the name.
    """
    return next(one for one in (path, *path.absolute().parents) if _exists(one))


def check_folder_writable(folder: Path) -> None:
    """Check that a folder is writable by making and removing a folder inside.

    Raises:
        OSError: The path is not a folder, or the folder is not writable.
    """
    # For root, `os.access` grants writing where file systems such as /proc refuse it.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".hydraulis-"):
        pass


def _exists(path: Path) -> bool:
    # `Path.exists` is false for a dangling link, and its errors depend on the version of Python.
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _target(path: Path) -> Path:
    """Follow links to the file to write."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not target.is_file():
        # Writing would replace a device or a pipe by a file.
        raise _unwritable(path, "it is not a regular file")
    return target


def _reason(path: Path, error: OSError) -> object:
    folder = path.parent
    if isinstance(error, FileNotFoundError) and not folder.exists():
        return f"the folder {folder.absolute()} does not exist"
    return error.strerror or error


def _unwritable(path: Path, reason: object) -> InvalidInputError:
    message = f"file '{path}' cannot be written: {reason}; name another file, make its folder, or make room"
    return InvalidInputError(message, code="file_unwritable")


_DIGEST = "digest"
new_digest = partial(hashlib.blake2b, digest_size=16)
"""Makes the digest of bytes that are given to it one after another."""


def file_digest(path: Path) -> str:
    """Return the digest of a file's content.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, new_digest).hexdigest()


def with_digest(document: Mapping[str, object]) -> str:
    """Return a document as one line of JSON; its last field is the digest of the others."""
    return json.dumps({**document, _DIGEST: _text_digest(document)}) + "\n"


def has_own_digest(document: dict[str, object]) -> bool:
    """Remove the digest from a document, and return whether it is that of the other fields."""
    return document.pop(_DIGEST, None) == _text_digest(document)


def _text_digest(document: Mapping[str, object]) -> str:
    return new_digest(json.dumps(document).encode()).hexdigest()


class MappedFile:
    """Maps a file that is not empty, read-only, and can tell whether it is still whole.

    Reading a mapped page beyond the end of a file that was shortened ends the process by SIGBUS, without a
    message. The size is therefore compared before each read, which takes a microsecond.

    Args:
        path: Path of the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def array(self, dtype: npt.DTypeLike, start: int = 0, count: int = -1) -> npt.NDArray[Any]:
        """Return numbers of the file as an array without a copy.

        Args:
            dtype: Type of a number.
            start: Byte of the first one.
            count: Number of them; -1 for all that follow.
        """
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=start)

    def check(self) -> None:
        """Check that the file still has its size.

        Raises:
            HydraulisError: It was shortened (code `data_file_invalid`).
        """
        size = self._map.size()
        if size < len(self._map):
            message = (
                f"file '{self.path}' had {len(self._map):,} bytes when it was opened and has {size:,}: "
                "restore it, or remove its folder if it is that of an index, and resume"
            )
            raise HydraulisError(message, code="data_file_invalid")
