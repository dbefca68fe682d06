"""Files that are there whole, or not at all, even after the power went."""

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from hydraulis.errors import HydraulisError
from hydraulis.files import replace_file


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, wait until the disk has it, and give it its own.

    Args:
        path: of the file.
        write: writes it to the path that it is given.

    Raises:
        HydraulisError: it cannot be written (code `file_unwritable`).
    """
    try:
        with replace_file(path, durable=True) as unfinished:
            write(unfinished)
    # safetensors has an exception of its own for a full disk.
    except (OSError, SafetensorError) as error:
        message = f"{path} cannot be written: {error}; make room, or set output.directory to another disk"
        raise HydraulisError(message, code="file_unwritable") from error
