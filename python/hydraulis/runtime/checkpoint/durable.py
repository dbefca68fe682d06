"""Atomic file writes that survive a power failure: a file is complete or absent."""

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from hydraulis.errors import HydraulisError
from hydraulis.files import replace_file


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it to `path`.

    Args:
        path: Final path of the file.
        write: Function that writes the file's content to the path passed to it.

    Raises:
        HydraulisError: The file cannot be written (code `file_unwritable`).
    """
    try:
        with replace_file(path, durable=True) as unfinished:
            write(unfinished)
    # safetensors raises its own exception for a full disk.
    except (OSError, SafetensorError) as error:
        message = f"{path} cannot be written: {error}; make room, or set output.directory to another disk"
        raise HydraulisError(message, code="file_unwritable") from error
