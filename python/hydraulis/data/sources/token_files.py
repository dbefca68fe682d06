"""Files of tokens, which are mapped: Megatron's indexed data sets, version 1, and `.npy` arrays.

A Megatron data set is a `.bin` file of tokens and an `.idx` file, which has in this order: the magic word,
the version (u64), a code of the dtype (u8), the numbers of sequences and of document bounds (u64 each), the
length of each sequence (i32), its start in bytes (i64), and the first sequence of each document (i64). A
document with several sequences is read as one.

A `.npy` array with two dimensions has one document per row; with one dimension it is one document.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np

from hydraulis.data.corpus import Corpus
from hydraulis.errors import InvalidInputError
from hydraulis.files import MappedFile
from hydraulis.planner.lengths import NUMPY_ERRORS

MEGATRON_SUFFIXES = (".bin", ".idx")
_NUMPY_SUFFIX = ".npy"

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# Blocks of a file in its fingerprint, evenly spread.
_BLOCKS, _BLOCK_BYTES = 64, 1 << 16


def is_token_file(path: Path) -> bool:
    """Whether the file's ending is that of a format with tokens."""
    return path.suffix in (*MEGATRON_SUFFIXES, _NUMPY_SUFFIX)


def open_token_file(path: Path) -> Corpus:
    """Map a file of tokens.

    Raises:
        InvalidInputError: The file is refused by `open_megatron` or `open_numpy_tokens`.
    """
    return open_megatron(path) if path.suffix in MEGATRON_SUFFIXES else open_numpy_tokens(path)


def open_megatron(path: Path) -> Corpus:
    """Map a Megatron data set.

    Args:
        path: Path of either of its two files.

    Raises:
        InvalidInputError: A file cannot be read or the files are no data set of version 1 (code
            `data_file_invalid`), or they have no token (`corpus_empty`).
    """
    index, tokens = path.with_suffix(".idx"), path.with_suffix(".bin")
    try:
        content = index.read_bytes()
        num_bytes = tokens.stat().st_size
    except OSError as error:
        raise _refusal(path, f"{error.filename} cannot be read ({error.strerror})") from error
    dtype, offset = _offsets(path, content)
    if offset[-1] * dtype.itemsize != num_bytes:
        raise _refusal(path, f"the .bin has {num_bytes} bytes, the .idx says {offset[-1] * dtype.itemsize}")
    # Empty documents are left out.
    filled = np.unique(offset)
    if len(filled) < 2:
        message = f"data set '{path}' has no token; leave it out"
        raise InvalidInputError(message, code="corpus_empty")
    try:
        file = MappedFile(tokens)
        fingerprint = sampled_fingerprint(tokens, content)
    except OSError as error:
        raise _refusal(path, f"{tokens} cannot be read ({error.strerror})") from error
    return Corpus(
        token_T=file.array(dtype),
        offset=filled,
        files=(file,),
        left_out={"documents_without_token": len(offset) - len(filled)},
        known_fingerprint=fingerprint,
    )


def sampled_fingerprint(path: Path, head: bytes) -> str:
    """Return the SHA-256 of `head`, the size of a file and 64 blocks of the file."""
    size = path.stat().st_size
    digest = hashlib.sha256(head)
    digest.update(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        for block in range(_BLOCKS):
            file.seek(max(0, size - _BLOCK_BYTES) * block // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _offsets(
    path: Path, content: bytes
) -> tuple["np.dtype[np.integer]", "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    """Return the dtype of the tokens, and the first token of each document with the end of the last."""
    if not content.startswith(_MAGIC) or len(content) < len(_MAGIC) + _HEAD.size:
        raise _refusal(path, "the .idx has another magic word")
    version, code, num_sequences, num_bounds = _HEAD.unpack_from(content, len(_MAGIC))
    if version != 1 or code not in _DTYPES:
        raise _refusal(path, f"it is of version {version} with the dtype of code {code}")
    dtype = np.dtype(_DTYPES[code])
    place = len(_MAGIC) + _HEAD.size
    if len(content) < place + 12 * num_sequences + 8 * num_bounds or not num_bounds:
        raise _refusal(path, f"the .idx has {len(content)} bytes, too few for {num_sequences} sequences")
    lengths = np.frombuffer(content, "<i4", num_sequences, place)
    start = np.frombuffer(content, "<i8", num_sequences, place + 4 * num_sequences)
    bounds = np.frombuffer(content, "<i8", num_bounds, place + 12 * num_sequences)
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if (lengths < 0).any() or (start != ends[:-1] * dtype.itemsize).any():
        raise _refusal(path, "its sequences are not consecutive")
    # A difference of damaged numbers could overflow.
    if bounds[0] != 0 or bounds[-1] != num_sequences or (bounds[1:] < bounds[:-1]).any():
        raise _refusal(path, "its documents do not cover every sequence once")
    return dtype, ends[bounds]


def _refusal(path: Path, reason: str) -> InvalidInputError:
    message = f"data set '{path}': {reason}; give a .bin and an .idx of Megatron's indexed format, version 1"
    return InvalidInputError(message, code="data_file_invalid")


def open_numpy_tokens(path: Path) -> Corpus:
    """Map an array of tokens.

    Raises:
        InvalidInputError: The file is no readable array of integers in one or two dimensions (code
            `data_file_invalid`).
    """
    array = _load(path)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.size == 0 or array.flags.fnc:
        message = (
            f"file '{path}' has shape {array.shape} and dtype {array.dtype}: it must be an array of "
            "integers with one or two dimensions in C order; convert it first"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    row = array.shape[-1]
    file = MappedFile(path)
    return Corpus(
        token_T=file.array(array.dtype, array.offset, array.size),
        files=(file,),
        offset=np.arange(0, array.size + 1, row, dtype=np.int64),
        known_fingerprint=sampled_fingerprint(path, b""),
    )


def _load(path: Path) -> "np.memmap[Any, np.dtype[Any]]":
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, *NUMPY_ERRORS) as error:
        message = f"file '{path}' is no readable .npy array ({error}); write it with numpy.save"
        raise InvalidInputError(message, code="data_file_invalid") from error
    if isinstance(array, np.memmap):
        return array
    # A zip file is an archive of arrays.
    array.close()
    message = f"file '{path}' is no .npy array; write it with numpy.save"
    raise InvalidInputError(message, code="data_file_invalid")
