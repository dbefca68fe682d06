"""Writes safetensors files with the usual permissions of their folder."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors, with the permissions of any new file in the folder.

    safetensors itself writes a temporary file that only its owner may read, and renames it to the path.

    Args:
        path: Path of the file; an existing file is replaced.
        tensors: Tensors by name.
        metadata: Metadata of the file.

    Raises:
        OSError: The file cannot be written.
        SafetensorError: The file cannot be written.
    """
    path.touch()
    # The kernel applies the umask and the folder's defaults; reading the umask would require changing it.
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    path.chmod(mode)
