"""Digests of files and documents: BLAKE2b with 128 bits, from the standard library.

A digest detects bytes that a disk, a copy or a person changed. BLAKE2b needs no special instructions of the
processor; log.md has its measured rate.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

_DIGEST = "digest"
_blake2b = partial(hashlib.blake2b, digest_size=16)


def file_digest(path: Path) -> str:
    """Return the digest of a file's content.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, _blake2b).hexdigest()


def with_digest(document: Mapping[str, object]) -> str:
    """Return a document as one line of JSON; its last field is the digest of the others."""
    return json.dumps({**document, _DIGEST: _text_digest(document)}) + "\n"


def has_own_digest(document: dict[str, object]) -> bool:
    """Remove the digest from a document, and return whether it is that of the other fields."""
    return document.pop(_DIGEST, None) == _text_digest(document)


def _text_digest(document: Mapping[str, object]) -> str:
    return _blake2b(json.dumps(document).encode()).hexdigest()
