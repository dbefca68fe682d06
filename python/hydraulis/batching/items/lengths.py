"""Lengths of a data set's sequences: an array, a memory map, a column, or a file.

Lengths stay where they are: a mapped file is read in blocks once, to check it, and then at the sequences of
each step. Hundreds of millions of lengths take no memory of the process.
"""

import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hydraulis._core import LONGEST_SEQUENCE
from hydraulis.batching.items.length_index import open_length_index
from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra
from hydraulis.files import unreadable_error
from hydraulis.planner.lengths import map_lengths

Lengths = npt.NDArray[np.integer[Any]]

_BLOCK: Final = 1 << 20
# Head of a Megatron index: magic word, version, code of the dtype, numbers of sequences and of documents.
_MAGIC: Final = b"MMIDIDX\x00\x00"
# The first bytes of an Arrow file that is no stream.
_RANDOM_ACCESS: Final = b"ARROW1"
# Types of Arrow that are whole numbers.
_WHOLE: Final = re.compile(r"u?int(8|16|32|64)")
_HEAD: Final = struct.Struct("<9sQBQQ")


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Facts about all lengths, from one pass over them.

    Attributes:
        sequences: Number of sequences.
        tokens: Sum of the lengths.
        longest: Index of the first longest sequence.
        longest_tokens: Its tokens.
        checksum: CRC-32 of the lengths as int64.
    """

    sequences: int
    tokens: int
    longest: int
    longest_tokens: int
    checksum: int


def open_lengths(source: object, column: str | None = None, *, name: str = "lengths") -> Lengths:
    """Take lengths from an array, a data set's column or a file, without a copy where that is possible.

    Args:
        source: A one-dimensional array of integers, a memory map or a list; a `datasets.Dataset` or pyarrow
            table; or a path. Mapped are `.npy`, Megatron's `.idx` with one length per sequence, and an
            `.index` of `hydraulis pack`. Read are `.parquet`, `.arrow`, `.jsonl` and text.
        column: Column or field of a data set, `.parquet`, `.arrow` or `.jsonl`, with lengths or with lists of
            tokens; None for other sources.
        name: Name of the values in a message.

    Raises:
        InvalidInputError: The source is no list of lengths (code `lengths_invalid`), or its file is refused
            (`file_unreadable`, `data_file_invalid`).
        HydraulisError: pyarrow is not installed for a file of its formats (code `extra_missing`).
    """
    if isinstance(source, str | Path):
        return _open_file(Path(source), column)
    if column is not None:
        return _column(source, column)
    try:
        lengths = np.asarray(source)
    except ValueError as error:
        raise _refusal(name, "rows of unequal length") from error
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not lengths.size:
        raise _refusal(name, f"shape {lengths.shape} and dtype {lengths.dtype}")
    return lengths


def _refusal(name: str, given: str) -> InvalidInputError:
    message = (
        f"{name} have {given}: give one dimension of whole numbers with at least 1 element, or name the "
        "column of a data set"
    )
    return InvalidInputError(message, code="lengths_invalid")


def summarize(lengths: Lengths) -> LengthSummary:
    """Check every length and summarize them in blocks.

    Raises:
        InvalidInputError: A length is outside its range (code `lengths_invalid`).
    """
    tokens = checksum = longest = longest_tokens = 0
    for start in range(0, len(lengths), _BLOCK):
        given = lengths[start : start + _BLOCK]
        wrong = np.flatnonzero((given < 1) | (given > LONGEST_SEQUENCE))
        if wrong.size:
            message = (
                f"sequence {start + wrong[0]} has length {given[wrong[0]]}: it must be between 1 and "
                f"{LONGEST_SEQUENCE:,}; correct it or leave it out"
            )
            raise InvalidInputError(message, code="lengths_invalid")
        block = np.ascontiguousarray(given, dtype=np.int64)
        tokens += int(block.sum())
        checksum = zlib.crc32(block.data, checksum)
        place = int(block.argmax())
        if block[place] > longest_tokens:
            longest, longest_tokens = start + place, int(block[place])
    return LengthSummary(len(lengths), tokens, longest, longest_tokens, checksum)


def _open_file(path: Path, column: str | None) -> Lengths:
    match path.suffix:
        case ".idx":
            return _map_megatron(path)
        case ".index":
            return open_length_index(path).lengths
        case ".parquet" | ".arrow":
            return _arrow_file(path, column)
        case _:
            return map_lengths(path, column)


def _arrow_file(path: Path, column: str | None) -> Lengths:
    if column is None:
        message = f"file '{path}' has columns: name the one (--field) with the lengths or the lists of tokens"
        raise InvalidInputError(message, code="data_file_invalid")
    pyarrow: Any = import_extra("pyarrow", f"file '{path}'")
    try:
        if path.suffix == ".parquet":
            parquet: Any = import_extra("pyarrow.parquet", f"file '{path}'")
            file = parquet.ParquetFile(path, pre_buffer=False)
            # Batch by batch, so that lists of tokens are never in memory together.
            batches = file.iter_batches(columns=[column]) if column in file.schema_arrow.names else ()
            parts = [_column(pyarrow.Table.from_batches([batch]), column) for batch in batches]
            return np.concatenate(parts) if parts else _column(file.schema_arrow.empty_table(), column)
        ipc: Any = import_extra("pyarrow.ipc", f"file '{path}'")
        with path.open("rb") as opened:
            is_stream = opened.read(len(_RANDOM_ACCESS)) != _RANDOM_ACCESS
        mapped = pyarrow.memory_map(str(path))
        return _column((ipc.open_stream(mapped) if is_stream else ipc.open_file(mapped)).read_all(), column)
    except OSError as error:
        raise unreadable_error(path, error) from error
    except InvalidInputError:
        raise
    # A damaged name is no UTF-8, and damaged sizes ask for any amount of memory.
    except (pyarrow.ArrowException, MemoryError, OverflowError, ValueError) as error:
        message = f"file '{path}' is no {path.suffix[1:]} file ({error}); write it again"
        raise InvalidInputError(message, code="data_file_invalid") from error


def _map_megatron(path: Path) -> Lengths:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
        if len(head) == _HEAD.size:
            magic, version, _, num_sequences, _ = _HEAD.unpack(head)
            fits = path.stat().st_size >= _HEAD.size + 12 * num_sequences
            if magic == _MAGIC and version == 1 and num_sequences and fits:
                mapped: Lengths = np.memmap(path, "<i4", "r", _HEAD.size, (num_sequences,))
                return mapped
    except OSError as error:
        raise unreadable_error(path, error) from error
    message = f"file '{path}' is no index of Megatron, version 1, with sequences; write it again"
    raise InvalidInputError(message, code="data_file_invalid")


def _column(source: Any, column: str) -> Lengths:
    names = getattr(source, "column_names", None)
    if not isinstance(names, list | tuple) or not hasattr(source, "__len__"):
        message = (
            f"column '{column}' is given with a {type(source).__name__}: give a datasets.Dataset that is not "
            "streamed or a pyarrow table, or the length of each sequence without a column"
        )
        raise InvalidInputError(message, code="lengths_invalid")
    if column not in names:
        message = (
            f"the data set has no column '{column}', its columns are {', '.join(names)}; name one of them"
        )
        raise InvalidInputError(message, code="lengths_invalid")
    if hasattr(source, "with_format"):
        # Applies the selection and the order of a `datasets.Dataset`.
        source = source.select_columns([column]).with_format("arrow")[:]
    values = source.column(column)
    # Offsets of a damaged column may point beyond its data.
    values.validate(full=True)
    kind = str(values.type)
    if kind.startswith(("list<", "large_list<", "fixed_size_list<")):
        if not _WHOLE.fullmatch(str(values.type.value_type)):
            message = (
                f"column '{column}' has type {kind}, and the elements of its lists are no whole numbers: "
                "name a column with a list of tokens for each sequence, or with lengths"
            )
            raise InvalidInputError(message, code="lengths_invalid")
        parts = [np.zeros(0, dtype=np.int64), *map(_list_lengths, values.chunks)]
        return open_lengths(np.concatenate(parts))
    lengths = values.to_numpy()
    if values.null_count or lengths.dtype.kind not in "iu":
        message = (
            f"column '{column}' has type {kind} and {values.null_count} nulls; give whole numbers or lists"
        )
        raise InvalidInputError(message, code="lengths_invalid")
    return open_lengths(lengths)


def _list_lengths(chunk: Any) -> npt.NDArray[np.int64]:
    lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
    if chunk.null_count:
        message = f"a column of lists has {chunk.null_count} nulls; leave those records out"
        raise InvalidInputError(message, code="lengths_invalid")
    converted: npt.NDArray[np.int64] = lengths.astype(np.int64)
    return converted
