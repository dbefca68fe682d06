"""Tokens in `.npy` files: each row of two dimensions is a document, and one dimension is one document."""

from pathlib import Path

import numpy as np

from hydraulis.data.corpus import Corpus
from hydraulis.data.sources.megatron import sampled_fingerprint
from hydraulis.errors import InvalidInputError

SUFFIX = ".npy"


def open_numpy_tokens(path: Path) -> Corpus:
    """Map an array of tokens.

    Raises:
        InvalidInputError: the file cannot be read or holds something else (code `source_file`).
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        message = f"file '{path}' is no .npy array that can be read ({error}); write it with numpy.save"
        raise InvalidInputError(message, code="source_file") from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.size == 0 or array.flags.fnc:
        message = (
            f"file '{path}' has shape {array.shape} and dtype {array.dtype}: it must hold tokens, as "
            "integers in one or two dimensions in C order; convert it first"
        )
        raise InvalidInputError(message, code="source_file")
    row = array.shape[-1]
    return Corpus(
        token_T=array.reshape(-1).view(np.ndarray),
        offset=np.arange(0, array.size + 1, row, dtype=np.int64),
        known_fingerprint=sampled_fingerprint(path, b""),
    )
