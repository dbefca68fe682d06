"""An index of a data set: the lengths of its sequences and their context windows, in mapped files.

A folder NAME.index has `lengths.npy`, `sequences.npy`, `window_offsets.npy`, and `index.json`, which is
written last, names the data, and has a digest of each array. It has no tokens. `hydraulis pack` writes it,
and a sampler takes its path as lengths.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hydraulis._core import Windows
from hydraulis.config.layered.table import from_table
from hydraulis.errors import InvalidInputError
from hydraulis.files import file_digest, has_own_digest, unreadable_error, with_digest, write_whole_file
from hydraulis.text.documents import parse_json

INDEX_SUFFIX: Final = ".index"
_FACTS: Final = "index.json"
_FORMAT: Final = 2
_ARRAYS: Final = ("lengths", "sequences", "window_offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The content of `index.json`.

    Attributes:
        format: Version of the format.
        source: Path of the data, relative to the folder with the index; absolute where there is no such path.
        source_bytes: Size of the data.
        window_tokens: Most tokens of a window.
        digests: Digests of the arrays, in the order of `_ARRAYS`.
    """

    format: int
    source: str
    source_bytes: int
    window_tokens: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LengthIndex:
    """A mapped index.

    Attributes:
        lengths: Tokens of each sequence, int32 [n].
        sequences: Sequences of all windows, window after window, int64 [n].
        window_offsets: First of each window's `sequences`, and their number at the end, int64 [windows + 1].
        window_tokens: Most tokens of a window.
    """

    lengths: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int64]
    window_offsets: npt.NDArray[np.int64]
    window_tokens: int

    def window(self, number: int) -> npt.NDArray[np.int64]:
        """Return the sequences of a window."""
        start, stop = self.window_offsets[number : number + 2]
        return self.sequences[start:stop]


def write_length_index(folder: Path, source: Path, lengths: npt.ArrayLike, windows: Windows) -> None:
    """Write an index of a data set.

    Args:
        folder: Folder to write, named NAME.index; an older index in it is replaced.
        source: File with the data, whose size the index states.
        lengths: Tokens of each sequence, [n].
        windows: Windows of the lengths.

    Raises:
        InvalidInputError: A file cannot be written, or the folder is no index (code `file_unwritable`).
    """
    facts = folder / _FACTS
    if folder.is_dir() and any(folder.iterdir()) and not facts.exists():
        message = f"folder '{folder}' cannot be written: it has files and is no index; name another"
        raise InvalidInputError(message, code="file_unwritable")
    try:
        folder.mkdir(exist_ok=True)
        # Without its facts an index of other arrays is incomplete.
        facts.unlink(missing_ok=True)
    except OSError as error:
        message = f"folder '{folder}' cannot be written ({error.strerror}); name another"
        raise InvalidInputError(message, code="file_unwritable") from error
    arrays: tuple[npt.NDArray[Any], ...] = (
        np.asarray(lengths, dtype=np.int32),
        windows.sequences,
        windows.window_offsets,
    )
    for name, array in zip(_ARRAYS, arrays, strict=True):
        with write_whole_file(folder / f"{name}.npy") as file:
            np.save(file, array)
    stated = _Facts(
        format=_FORMAT,
        source=_relative(source, folder),
        source_bytes=source.stat().st_size,
        window_tokens=windows.window_tokens,
        digests=tuple(file_digest(folder / f"{name}.npy") for name in _ARRAYS),
    )
    with write_whole_file(facts) as file:
        file.write(with_digest(dataclasses.asdict(stated)).encode())


def open_length_index(folder: str | Path) -> LengthIndex:
    """Map an index, after reading it once.

    Raises:
        InvalidInputError: A file is missing (code `file_unreadable`), the index has another format or was
            changed, or the data has another size than the index states (`data_file_invalid`). Data that are
            no longer at their path are not compared.
    """
    folder = Path(folder)
    try:
        facts = _facts(parse_json((folder / _FACTS).read_text(encoding="utf-8")))
        arrays = [
            _array(folder / f"{name}.npy", digest)
            for name, digest in zip(_ARRAYS, facts.digests, strict=True)
        ]
    except OSError as error:
        raise unreadable_error(folder, error) from error
    except ValueError as error:
        message = f"folder '{folder}' is no index of lengths ({error}); write it again with hydraulis pack"
        raise InvalidInputError(message, code="data_file_invalid") from error
    source = folder.parent / facts.source
    if source.is_file() and source.stat().st_size != facts.source_bytes:
        message = (
            f"file '{source}' has {source.stat().st_size:,} bytes, and its index '{folder}' was written for "
            f"{facts.source_bytes:,}; write the index again with hydraulis pack"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    return LengthIndex(arrays[0], arrays[1], arrays[2], facts.window_tokens)


def _relative(source: Path, folder: Path) -> str:
    """Return the path from the folder with an index to its data; it stays valid if both move together."""
    absolute = source.parent.resolve() / source.name
    try:
        return Path(os.path.relpath(absolute, folder.parent.resolve())).as_posix()
    except ValueError:
        # Windows has no path between two drives.
        return str(absolute)


def _array(path: Path, digest: str) -> npt.NDArray[Any]:
    """Map an array whose content has this digest."""
    if file_digest(path) != digest:
        message = f"{path.name} does not match its digest, so it was changed"
        raise ValueError(message)
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _facts(document: Any) -> _Facts:
    """Check the content of `index.json`.

    Raises:
        ValueError: It has another format, or was changed.
    """
    stated = document.get("format") if isinstance(document, Mapping) else None
    if stated != _FORMAT:
        message = f"it has format {stated}, and {_FORMAT} is read"
        raise ValueError(message)
    if not has_own_digest(document):
        message = f"{_FACTS} does not match its digest, so it was changed"
        raise ValueError(message)
    return from_table(_Facts, document, "index")
