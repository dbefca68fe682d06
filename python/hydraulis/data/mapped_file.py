"""A mapped file that can tell whether it is still whole.

Reading a mapped page beyond the end of a file that was shortened ends the process by SIGBUS, without a
message. The size is therefore compared before each read, which takes a microsecond.
"""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydraulis.errors import HydraulisError


class MappedFile:
    """Maps a file that is not empty, read-only.

    Args:
        path: Path of the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def array(self, dtype: npt.DTypeLike, start: int = 0, count: int = -1) -> npt.NDArray[Any]:
        """Return numbers of the file as an array without a copy.

        Args:
            dtype: Type of a number.
            start: Byte of the first one.
            count: Number of them; -1 for all that follow.
        """
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=start)

    def check(self) -> None:
        """Check that the file still has its size.

        Raises:
            HydraulisError: It was shortened (code `data_file_invalid`).
        """
        size = self._map.size()
        if size < len(self._map):
            message = (
                f"file '{self.path}' had {len(self._map):,} bytes when it was opened and has {size:,}: "
                "restore it, or remove its folder if it is that of an index, and resume"
            )
            raise HydraulisError(message, code="data_file_invalid")
