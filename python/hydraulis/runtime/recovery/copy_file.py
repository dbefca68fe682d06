"""One file of a copy: the tensors of a shard, and metadata that describes the state of all ranks.

The metadata has a digest, so that a damaged file counts as lost. The digest is that of one 32-bit sum for
each 1,024 words, which any single changed word changes: the sums of 50 million float32 take 10 ms on one
busy core, BLAKE2b of all their bytes 700 ms.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hydraulis.errors import HydraulisError
from hydraulis.files import new_digest, replace_file
from hydraulis.runtime.checkpoint.shard import write_tensors
from hydraulis.runtime.recovery.memory_folder import CopyName

_DIGEST, _NAME = "digest", "copy"
_ROW = 1024


def write_copy(
    path: Path, name: CopyName, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a file; it appears under its name when it is complete.

    Args:
        path: Path of the file.
        name: Name of the file.
        tensors: Tensors in host memory, by their names in a shard of a checkpoint.
        metadata: Description of the state.

    Raises:
        OSError: The file cannot be written.
        SafetensorError: The file cannot be written.
    """
    described = {**metadata, _NAME: str(name)}
    described[_DIGEST] = _digest(described, sorted(tensors.items()))
    with replace_file(path) as unfinished:
        write_tensors(unfinished, tensors, described)


def open_copy(path: Path) -> AbstractContextManager[Any]:
    """Open a file that was found whole, to read its tensors and metadata in the context.

    Raises:
        HydraulisError: The file was removed or changed since (code `checkpoint_missing`).
    """
    try:
        file: AbstractContextManager[Any] = safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        message = (
            f"copy {path} was removed or damaged while the run was resumed ({error}): another run with this "
            "checkpoint.memory_folder removes the copies of launchers that have ended; start again, to "
            "continue from the copies that are left or from the newest checkpoint"
        )
        raise HydraulisError(message, code="checkpoint_missing") from error
    return file


def is_whole(path: Path, name: CopyName) -> bool:
    """Return whether a file has the content that was written; reads it whole."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            written = metadata.pop(_DIGEST, None)
            tensors = ((key, file.get_tensor(key)) for key in sorted(file.keys()))
            return metadata.get(_NAME) == str(name) and written == _digest(metadata, tensors)
    except (OSError, SafetensorError):
        return False


def _digest(metadata: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the digest of the metadata and of the tensors in the order of their names."""
    digest = new_digest(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        words = tensor.view(torch.int32 if tensor.itemsize % 4 == 0 else torch.int16)
        rows, rest = words.split([len(words) // _ROW * _ROW, len(words) % _ROW])
        for sums in (rows.view(-1, _ROW).sum(1, dtype=torch.int32), rest.sum(dtype=torch.int32)):
            digest.update(sums.numpy().tobytes())
    return digest.hexdigest()
