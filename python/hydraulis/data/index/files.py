"""The files of an index, and the journal of an incomplete one.

- `tokens.bin`: all tokens.
- `loss_mask.bin`: one byte per token, 1 for a target; only with loss masks.
- `offsets.bin`, `lengths.bin`, `targets.bin`: an int64 per document.
- `digests.bin`: the digest of each document's tokens and mask, 64 bits, verified when the document is read.
- `journal.json`: the valid extent of these files while the index is built.
- `index.json`: the extent of a complete index, in place of the journal.

Journal and `index.json` have a digest of each file with a number per document, and one of themselves; opening
the index or continuing its build verifies them. All numbers are little-endian. Bytes after the journal's
extent are cut off and written again.
"""

import dataclasses
import errno
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from hydraulis.config.layered.table import from_table
from hydraulis.data.corpus import Corpus
from hydraulis.data.index.broken_records import MAX_LISTED
from hydraulis.data.index.job import Block
from hydraulis.errors import HydraulisError
from hydraulis.files import (
    MappedFile,
    file_digest,
    has_own_digest,
    new_digest,
    open_unlinked,
    read_regular,
    replace_file,
    with_digest,
)
from hydraulis.text.documents import parse_json
from hydraulis.text.values import escape_unprintable

DOCUMENT_FILES = ("offsets.bin", "lengths.bin", "targets.bin", "digests.bin")
"""Files with a number per document."""
_JOURNAL, _COMPLETE = "journal.json", "index.json"
_READ_BYTES = 1 << 20
# Errors of `read_regular` for something else than a file.
_NO_REGULAR_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of an index.

    Attributes:
        dtype: Type of the tokens.
        masked: Whether there is a loss mask.
        pieces: Number of finished pieces.
        documents: Number of documents.
        tokens: Number of tokens.
        without_target: Number of documents left out because they have no target.
        broken: Number of broken records left out.
        first_broken: Places and causes of the first of them.
        file_readable: Number of readable records in the finished pieces of an unfinished file.
        file_broken: Number of broken records there.
        file_first_broken: Place and cause of the first of these; empty without any.
        largest_token: The largest token.
        fingerprint: SHA-256 of the content: the digest of each block together with the previous digest.
        digests: Digests of the files of `DOCUMENT_FILES`, in their order.
    """

    dtype: str
    masked: bool
    pieces: int = 0
    documents: int = 0
    tokens: int = 0
    without_target: int = 0
    broken: int = 0
    first_broken: tuple[str, ...] = ()
    file_readable: int = 0
    file_broken: int = 0
    file_first_broken: str = ""
    largest_token: int = 0
    fingerprint: str = ""
    digests: tuple[str, ...] = ()

    def file_sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes."""
        sizes = {
            "tokens.bin": self.tokens * np.dtype(self.dtype).itemsize,
            "offsets.bin": 8 * (self.documents + 1),
            "lengths.bin": 8 * self.documents,
            "targets.bin": 8 * self.documents,
            "digests.bin": 8 * self.documents,
        }
        return sizes | ({"loss_mask.bin": self.tokens} if self.masked else {})


class IndexWriter:
    """Appends blocks to an index, after the finished pieces of an earlier attempt.

    Args:
        folder: Folder of the index.
        start: Extent of an empty index.

    Attributes:
        extent: Extent written so far.
    """

    def __init__(self, folder: Path, start: Extent) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._digests = {name: new_digest() for name in DOCUMENT_FILES}
        self.extent = _read_extent(folder / _JOURNAL) or start
        self._finished = self.extent

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            sizes = self.extent.file_sizes()
            if self.extent.pieces == 0:
                for name in sizes:
                    self._files[name] = opened.enter_context(open_unlinked(self._folder / name, "wb"))
                self._write("offsets.bin", np.zeros(1, dtype="<i8"))
                self.extent = dataclasses.replace(self.extent, digests=self._current_digests())
                self._finished = self.extent
            else:
                for name, size in sizes.items():
                    self._files[name] = opened.enter_context(self._go_on(name, size))
                _check_digests(self._folder, self._current_digests(), self.extent)
            opened.pop_all()
        return self

    def _go_on(self, name: str, size: int) -> BinaryIO:
        """Open a file after its first `size` bytes, the rest of which is cut off, and take their digest."""
        path = self._folder / name
        file = open_unlinked(path, "r+b")
        have = os.fstat(file.fileno()).st_size
        if have < size:
            file.close()
            raise _damaged(path, have, size)
        file.truncate(size)
        if name in self._digests:
            while content := file.read(_READ_BYTES):
                self._digests[name].update(content)
        file.seek(0, os.SEEK_END)
        return file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.save()
        for file in self._files.values():
            file.close()

    def add(self, block: Block) -> None:
        """Append the documents of a block."""
        extent = self.extent
        digest = hashlib.sha256(extent.fingerprint.encode())
        offsets = extent.tokens + np.cumsum(block.lengths)
        self._write("tokens.bin", block.tokens, digest)
        self._write("lengths.bin", block.lengths.astype("<i8"), digest)
        self._write("targets.bin", block.target_counts.astype("<i8"))
        self._write("offsets.bin", offsets.astype("<i8"))
        self._write("digests.bin", block.digests.astype("<u8"))
        if block.loss_mask is not None:
            self._write("loss_mask.bin", block.loss_mask, digest)
        self.extent = dataclasses.replace(
            extent,
            documents=extent.documents + len(block.lengths),
            tokens=extent.tokens + len(block.tokens),
            without_target=extent.without_target + block.num_without_target,
            file_readable=extent.file_readable + len(block.lengths) + block.num_without_target,
            largest_token=max(extent.largest_token, int(block.tokens.max(initial=0))),
            fingerprint=digest.hexdigest(),
        )

    def leave_out(self, number: int, places: Sequence[str]) -> None:
        """Count broken records that are left out.

        Args:
            number: Number of records.
            places: Places and causes of the first of them.
        """
        extent = self.extent
        # A file's name and a field's value may be no UTF-8, which the extent must be.
        texts = [escape_unprintable(place) for place in places]
        first = (*extent.first_broken, *texts)[:MAX_LISTED]
        self.extent = dataclasses.replace(
            extent,
            broken=extent.broken + number,
            first_broken=first,
            file_broken=extent.file_broken + number,
            file_first_broken=extent.file_first_broken or next(iter(texts), ""),
        )

    def end_piece(self, *, ends_file: bool) -> None:
        """Count a piece as finished, and after the last one of a file begin the counts of the next file."""
        digests = self._current_digests()
        self.extent = dataclasses.replace(self.extent, pieces=self.extent.pieces + 1, digests=digests)
        if ends_file:
            self.extent = dataclasses.replace(
                self.extent, file_readable=0, file_broken=0, file_first_broken=""
            )
        self._finished = self.extent

    def save(self, *, complete: bool = False) -> None:
        """Sync the files to disk, then write the journal of the finished pieces, or the complete extent."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        extent = dataclasses.asdict(self._finished)
        # A durable journal: after a power failure the synced bytes are useless without it.
        with replace_file(self._folder / (_COMPLETE if complete else _JOURNAL), durable=True) as unfinished:
            unfinished.write_text(with_digest(extent), encoding="utf-8")
        if complete:
            (self._folder / _JOURNAL).unlink(missing_ok=True)

    def _write(self, name: str, array: np.ndarray[Any, Any], digest: Any = None) -> None:
        content = np.ascontiguousarray(array).tobytes()
        self._files[name].write(content)
        for one in (digest, self._digests.get(name)):
            if one is not None:
                one.update(content)

    def _current_digests(self) -> tuple[str, ...]:
        return tuple(self._digests[name].hexdigest() for name in DOCUMENT_FILES)


def complete_extent(folder: Path) -> Extent | None:
    """Return the extent of a complete index; None if it is missing or incomplete.

    Raises:
        HydraulisError: The file is malformed or was changed (code `index_damaged`), or the system refuses to
            read it (`file_unreadable`).
    """
    return _read_extent(folder / _COMPLETE)


def partial_extent(folder: Path) -> Extent | None:
    """Return the valid extent of an incomplete index; None without any.

    Raises:
        HydraulisError: The errors of `complete_extent`.
    """
    return _read_extent(folder / _JOURNAL)


def open_index(folder: Path) -> Corpus:
    """Map a complete index.

    Raises:
        HydraulisError: The index is missing or incomplete, or a file has another size or content than was
            written (code `index_damaged`), or the system refuses to read a file (`file_unreadable`).
    """
    extent = complete_extent(folder)
    if extent is None:
        message = (
            f"index '{folder}' is not complete on this machine: set data.index_directory to a folder that "
            "every node sees"
        )
        raise HydraulisError(message, code="index_damaged")
    try:
        _check_files(folder, extent)
        files = {name: MappedFile(folder / name) for name in extent.file_sizes()}
    except OSError as error:
        raise _unreadable(Path(error.filename or folder), error) from error
    return Corpus(
        token_T=files["tokens.bin"].array(extent.dtype),
        offset=files["offsets.bin"].array("<i8"),
        loss_mask_T=files["loss_mask.bin"].array("?") if extent.masked else None,
        left_out={"documents_without_target": extent.without_target, "broken_records": extent.broken},
        first_broken=extent.first_broken,
        known_lengths=files["lengths.bin"].array("<i8"),
        known_target_counts=files["targets.bin"].array("<i8"),
        known_fingerprint=extent.fingerprint,
        known_largest_token=extent.largest_token,
        known_digests=files["digests.bin"].array("<u8"),
        files=tuple(files.values()),
    )


def _check_files(folder: Path, extent: Extent) -> None:
    for name, size in extent.file_sizes().items():
        have = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if have != size:
            raise _damaged(folder / name, have, size)
    _check_digests(folder, [file_digest(folder / name) for name in DOCUMENT_FILES], extent)


def _check_digests(folder: Path, digests: Sequence[str], extent: Extent) -> None:
    for name, have, digest in zip(DOCUMENT_FILES, digests, extent.digests, strict=True):
        if have != digest:
            message = (
                f"index file '{folder / name}' does not match its digest, so it was changed: remove the "
                "folder to build it again"
            )
            raise HydraulisError(message, code="index_damaged")


def _damaged(path: Path, have: int, size: int) -> HydraulisError:
    message = (
        f"index file '{path}' has {have} bytes and must have {size}: remove the folder to build it again"
    )
    return HydraulisError(message, code="index_damaged")


def _unreadable(path: Path, error: OSError) -> HydraulisError:
    # No InvalidInputError: a build that ends by one removes the folder.
    message = (
        f"index file '{path}' cannot be read ({error.strerror or error}): check its permissions and its "
        "disk, or set data.index_directory to another folder"
    )
    return HydraulisError(message, code="file_unreadable")


def _read_extent(path: Path) -> Extent | None:
    try:
        return _parsed(read_regular(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_REGULAR_FILE:
            raise _unreadable(path, error) from error
        message = f"'{path}' cannot be read ({error}): remove its folder to build the index again"
        raise HydraulisError(message, code="index_damaged") from error


def _parsed(text: str) -> Extent:
    document = parse_json(text)
    if not isinstance(document, dict) or not has_own_digest(document):
        message = "its content does not match its digest, so it was changed"
        raise ValueError(message)
    return from_table(Extent, document, "index")
