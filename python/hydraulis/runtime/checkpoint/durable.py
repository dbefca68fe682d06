"""Files that are there whole, or not at all, even after the power went."""

import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from hydraulis.errors import HydraulisError


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, wait until the disk has it, and give it its own.

    Args:
        path: of the file.
        write: writes it to the path that it is given.

    Raises:
        HydraulisError: it cannot be written (code `checkpoint_write`).
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        write(unfinished)
        _sync(unfinished)
        unfinished.replace(path)
        _sync(path.parent)
    # safetensors has an exception of its own for a full disk.
    except (OSError, SafetensorError) as error:
        message = f"{path} cannot be written: {error}; make room, or set output.directory to another disk"
        raise HydraulisError(message, code="checkpoint_write") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
