"""An index beside a data set: the lengths of its sequences and their context windows, in mapped files.

A folder NAME.index has `lengths.npy`, `sequences.npy`, `window_offsets.npy`, and `index.json`, which is
written last and names the data. It has no tokens. `hydraulis pack` writes it, and a sampler takes its path as
lengths.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hydraulis._core import Windows
from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error, write_whole_file

INDEX_SUFFIX: Final = ".index"
_FACTS: Final = "index.json"
_FORMAT: Final = 1
_ARRAYS: Final = ("lengths", "sequences", "window_offsets")


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
    document = {
        "format": _FORMAT,
        "source": source.name,
        "source_bytes": source.stat().st_size,
        "window_tokens": windows.window_tokens,
    }
    with write_whole_file(facts) as file:
        file.write(json.dumps(document, indent=2).encode() + b"\n")


def open_length_index(folder: str | Path) -> LengthIndex:
    """Map an index.

    Raises:
        InvalidInputError: A file is missing (code `file_unreadable`), the index has another format, or the
            data next to it has another size than the index states (`data_file_invalid`).
    """
    folder = Path(folder)
    try:
        facts: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS]
    except OSError as error:
        raise unreadable_error(folder, error) from error
    except ValueError as error:
        message = f"folder '{folder}' is no index of lengths ({error}); write it again with hydraulis pack"
        raise InvalidInputError(message, code="data_file_invalid") from error
    source = folder.parent / str(facts.get("source"))
    if facts.get("format") != _FORMAT:
        message = f"index '{folder}' has format {facts.get('format')}, and {_FORMAT} is read; write it again"
        raise InvalidInputError(message, code="data_file_invalid")
    if source.is_file() and source.stat().st_size != facts["source_bytes"]:
        message = (
            f"file '{source}' has {source.stat().st_size:,} bytes, and its index '{folder}' was written for "
            f"{facts['source_bytes']:,}; write the index again with hydraulis pack"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    return LengthIndex(arrays[0], arrays[1], arrays[2], facts["window_tokens"])
