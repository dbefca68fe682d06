"""Sequence lengths from a file: text, `.npy` or `.jsonl`.

Every length is checked while its line is known, so that a message names the line. The planner checks the
largest length, which depends on the profile and the cluster.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, TextIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hydraulis._core import LONGEST_SEQUENCE
from hydraulis.errors import InvalidInputError
from hydraulis.files import DECOMPRESS, unreadable_error
from hydraulis.progress import ProgressCallback, ignore_progress
from hydraulis.text.documents import describe_json_error, parse_json

NUMPY_ERRORS = (
    EOFError,
    MemoryError,
    OverflowError,
    RecursionError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    BadZipFile,
)
"""Errors of a damaged `.npy` file: numpy reads its header as Python, and a zip as `.npz`."""

# An int64 has at most 19 digits; longer numbers are out of range and slow to convert.
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_LINES_PER_REPORT = 4096
# The ending of a compressed file hides its format.
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".zip")


def read_lengths(
    path: str | Path, field: str | None = None, progress: ProgressCallback = ignore_progress
) -> NDArray[np.int64]:
    """Read the length of every sequence, in the file's order.

    The name's ending determines the format: `.npy` is a one-dimensional integer array; `.jsonl` has one JSON
    object per line, whose field is the length or a list of tokens; other files have one length per line.
    Blank lines are skipped.

    Args:
        path: Path of the file.
        field: Field of each `.jsonl` record; None for other formats.
        progress: Callback, called with the bytes read so far and in all.

    Returns:
        At least one length, each at least 1, int64 [n].

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`), its content is no list of
            lengths, or `field` is missing, given for another format, or no length in some record
            (`data_file_invalid`).
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".npz":
        message = f"file '{path}' is an archive of arrays: save the lengths alone as .npy, by numpy.save"
        raise InvalidInputError(message, code="data_file_invalid")
    if kind != ".jsonl" and field is not None:
        if kind in _COMPRESSED:
            message = f"file '{path}' cannot be read: by its name it is compressed; {DECOMPRESS}"
            raise InvalidInputError(message, code="file_unreadable")
        message = (
            f"field '{field}' is given for '{path}', which has no fields: leave it out, or give a .jsonl file"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    try:
        lengths = _array(path) if kind == ".npy" else _from_lines(path, field, progress)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error
    _check_any(path, lengths)
    return lengths


def map_lengths(
    path: str | Path, field: str | None = None, progress: ProgressCallback = ignore_progress
) -> NDArray[np.integer[Any]]:
    """Read lengths as `read_lengths` does, but map an `.npy` file into memory instead of reading it.

    The values of a mapped file are not checked here.

    Args:
        path: Path of the file.
        field: Field of each `.jsonl` record; None for other formats.
        progress: Callback as in `read_lengths`.

    Returns:
        The lengths; a mapped file keeps its own dtype.

    Raises:
        InvalidInputError: The file or the field is refused as in `read_lengths`.
    """
    path = Path(path)
    if path.suffix.lower() != ".npy" or field is not None:
        return read_lengths(path, field, progress)
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise unreadable_error(path, error) from error
    except NUMPY_ERRORS as error:
        raise _no_array(path, error) from error
    _check_kind(path, array)
    _check_any(path, array)
    return array


def _from_lines(path: Path, field: str | None, progress: ProgressCallback) -> NDArray[np.int64]:
    # utf-8-sig skips the byte order mark that some editors write.
    with path.open(encoding="utf-8-sig") as lines:
        is_jsonl = path.suffix.lower() == ".jsonl"
        reported = _with_progress(path, lines, progress)
        lengths = _records(path, reported, field) if is_jsonl else _numbers(path, reported)
        return np.fromiter(lengths, dtype=np.int64)


def _with_progress(path: Path, lines: TextIO, progress: ProgressCallback) -> Iterator[str]:
    size = path.stat().st_size
    for number, line in enumerate(lines):
        if number % _LINES_PER_REPORT == 0:
            # A text file has no position during iteration, but its bytes do. A pipe has none.
            place = lines.buffer.tell() if size else 0
            progress(f"reading the bytes of {path.name}", place, size)
        yield line


def _numbers(path: Path, lines: Iterable[str]) -> Iterator[int]:
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text:
            place = f"file '{path}', line {number}"
            if not _INTEGER.fullmatch(text):
                raise _no_length(place, f"'{_shortened(text)}'")
            yield _in_range(int(text), place)


def _records(path: Path, lines: Iterable[str], field: str | None) -> Iterator[int]:
    if field is None:
        message = (
            f"file '{path}' holds records: name the field (--field) with the length or the list of tokens"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _record_length(line, field, f"file '{path}', line {number}")


def _record_length(line: str, field: str, place: str) -> int:
    try:
        record = parse_json(line.rstrip())
    except ValueError as error:
        reason = describe_json_error(error)
        message = f'{place} is no JSON ({reason}): write one object per line, such as {{"{field}": 512}}'
        raise InvalidInputError(message, code="data_file_invalid") from None
    if not isinstance(record, dict):
        message = f'{place} is no JSON object: write one per line, such as {{"{field}": 512}}'
        raise InvalidInputError(message, code="data_file_invalid")
    if field not in record:
        fields = ", ".join(record) or "none"
        message = f"{place} has no field '{field}', its fields are {fields}: name one that every line has"
        raise InvalidInputError(message, code="data_file_invalid")
    value = record[field]
    place = f"{place}, field '{field}'"
    if isinstance(value, list):
        return _in_range(len(value), place)
    # isinstance would accept a bool.
    if type(value) is not int:
        raise _no_length(place, _shortened(json.dumps(value)))
    return _in_range(value, place)


def _array(path: Path) -> NDArray[np.int64]:
    with path.open("rb") as file:
        try:
            array = np.lib.format.read_array(file, allow_pickle=False)
        except NUMPY_ERRORS as error:
            raise _no_array(path, error) from error
    _check_kind(path, array)
    outside = np.flatnonzero((array < 1) | (array > LONGEST_SEQUENCE))
    if outside.size:
        _in_range(int(array[outside[0]]), f"file '{path}', element {outside[0]}")
    return array.astype(np.int64)


def _check_kind(path: Path, array: NDArray[Any]) -> None:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        message = (
            f"file '{path}' has shape {array.shape} and dtype {array.dtype}: lengths have one dimension "
            "and an integer dtype, so that nothing is rounded; convert it first"
        )
        raise InvalidInputError(message, code="data_file_invalid")


def _check_any(path: Path, array: NDArray[Any]) -> None:
    if array.size == 0:
        message = f"file '{path}' holds 0 lengths, at least 1 is needed: give one for each sequence"
        raise InvalidInputError(message, code="data_file_invalid")


def _no_array(path: Path, error: Exception) -> InvalidInputError:
    message = f"file '{path}' is no .npy array of integers ({error}): write it with numpy.save"
    return InvalidInputError(message, code="data_file_invalid")


def _in_range(length: int, place: str) -> int:
    if not 1 <= length <= LONGEST_SEQUENCE:
        message = (
            f"{place} has length {length}: it must be between 1 and {LONGEST_SEQUENCE:,}; "
            "correct it or leave it out"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    return length


def _no_length(place: str, value: str) -> InvalidInputError:
    message = (
        f"{place} is {value}: a length is a whole number from 1 to {LONGEST_SEQUENCE:,}; "
        "correct it or leave it out"
    )
    return InvalidInputError(message, code="data_file_invalid")


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."
