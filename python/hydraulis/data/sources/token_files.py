"""Megatron's indexed data sets: tokens in a `.bin` file, and where documents begin in the `.idx` beside it.

They are tokenised already, so they are mapped as they are. The layout is that of version 1: the magic word,
the version (u64), a code of the dtype (u8), the numbers of sequences and of document bounds (u64 each), then
the length of each sequence (i32), where it starts in bytes (i64), and at which sequence each document begins
(i64). A document of several sequences is taken as one.
"""

import hashlib
import struct
from pathlib import Path

import numpy as np

from hydraulis.data.corpus import Corpus
from hydraulis.errors import InvalidInputError

MEGATRON_SUFFIXES = (".bin", ".idx")
_NUMPY_SUFFIX = ".npy"

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# Of large files only so many blocks go into the fingerprint, evenly spread.
_BLOCKS, _BLOCK_BYTES = 64, 1 << 16


def is_token_file(path: Path) -> bool:
    """Whether a file holds tokens, which are mapped, and not records."""
    return path.suffix in (*MEGATRON_SUFFIXES, _NUMPY_SUFFIX)


def open_token_file(path: Path) -> Corpus:
    """Map a file of tokens.

    Raises:
        InvalidInputError: see `open_megatron` and `open_numpy_tokens`.
    """
    return open_megatron(path) if path.suffix in MEGATRON_SUFFIXES else open_numpy_tokens(path)


def open_megatron(path: Path) -> Corpus:
    """Map a data set.

    Args:
        path: either of its two files.

    Raises:
        InvalidInputError: one of the files cannot be read, or they are no data set of version 1 (code
            `data_file_invalid`), or hold no token (`corpus_empty`).
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
    # A document without a token is none.
    filled = np.unique(offset)
    if len(filled) < 2:
        message = f"data set '{path}' holds no token; leave it out"
        raise InvalidInputError(message, code="corpus_empty")
    return Corpus(
        token_T=np.memmap(tokens, dtype=dtype, mode="r").view(np.ndarray),
        offset=filled,
        left_out={"documents_without_token": len(offset) - len(filled)},
        known_fingerprint=sampled_fingerprint(tokens, content),
    )


def sampled_fingerprint(path: Path, head: bytes) -> str:
    """Return the SHA-256 of some bytes and of a sample of a file, which is too large to be read whole."""
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
    """Return the dtype of the tokens, and at which token each document starts, and the last one ends."""
    if not content.startswith(_MAGIC) or len(content) < len(_MAGIC) + _HEAD.size:
        raise _refusal(path, "the .idx does not begin as one")
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
        raise _refusal(path, "its sequences do not stand one after another")
    if bounds[0] != 0 or bounds[-1] != num_sequences or (np.diff(bounds) < 0).any():
        raise _refusal(path, "its documents do not hold every sequence once")
    return dtype, ends[bounds]


def _refusal(path: Path, why: str) -> InvalidInputError:
    message = f"data set '{path}': {why}; give a .bin and an .idx of Megatron's indexed format, version 1"
    return InvalidInputError(message, code="data_file_invalid")


def open_numpy_tokens(path: Path) -> Corpus:
    """Map an array of tokens.

    Raises:
        InvalidInputError: the file cannot be read or holds something else (code `data_file_invalid`).
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        message = f"file '{path}' is no .npy array that can be read ({error}); write it with numpy.save"
        raise InvalidInputError(message, code="data_file_invalid") from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.size == 0 or array.flags.fnc:
        message = (
            f"file '{path}' has shape {array.shape} and dtype {array.dtype}: it must hold tokens, as "
            "integers in one or two dimensions in C order; convert it first"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    row = array.shape[-1]
    return Corpus(
        token_T=array.reshape(-1).view(np.ndarray),
        offset=np.arange(0, array.size + 1, row, dtype=np.int64),
        known_fingerprint=sampled_fingerprint(path, b""),
    )
