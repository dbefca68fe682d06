"""Digests of a checkpoint's files: BLAKE2b with 128 bits, from the standard library.

A digest detects bytes that a disk, a copy or a person changed. BLAKE2b needs no special instructions of the
processor; log.md has its measured rate beside that of the disk.
"""

import hashlib
from functools import partial
from pathlib import Path

_blake2b = partial(hashlib.blake2b, digest_size=16)


def file_digest(path: Path) -> str:
    """Return the digest of a file's content.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, _blake2b).hexdigest()


def text_digest(text: str) -> str:
    """Return the digest of a text in UTF-8."""
    return _blake2b(text.encode()).hexdigest()
