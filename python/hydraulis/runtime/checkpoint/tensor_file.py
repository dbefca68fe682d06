"""Files of tensors, as anybody who may read their folder expects them."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors, with the permissions of any new file in that folder.

    safetensors writes a temporary file, which its owner alone may read, and gives it the path's name.

    Args:
        path: of the file; what is there is replaced.
        tensors: by name.
        metadata: of the file.

    Raises:
        OSError: the file cannot be written.
        SafetensorError: likewise.
    """
    path.touch()
    # The kernel knows the umask and what the folder adds to it; asking for the umask would change it.
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    path.chmod(mode)
