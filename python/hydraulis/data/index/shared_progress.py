"""The number of pieces that worker processes have finished, in shared memory."""

import os
from typing import NamedTuple, Self

import numpy as np


class ProgressNotice(NamedTuple):
    """An answer of a process that only announces new progress in `SharedProgress`."""


class SharedProgress(NamedTuple):
    """The pieces that each process has finished, with the finished share of its current piece.

    The answers of the processes are read in the order of the pieces. Shared memory shows a process's progress
    before its turn.

    Attributes:
        file: Descriptor of a file in memory, with one double for each process.
    """

    file: int

    @classmethod
    def create(cls, processes: int) -> Self:
        """Create the memory for a number of processes."""
        file = os.memfd_create("finished-pieces")
        os.truncate(file, 8 * processes)
        return cls(file)

    def write(self, process: int, pieces: float) -> None:
        """Set the number of finished pieces of a process."""
        os.pwrite(self.file, np.float64(pieces).tobytes(), 8 * process)

    def total(self) -> float:
        """Add up the finished pieces of all processes."""
        pieces = os.pread(self.file, os.fstat(self.file).st_size, 0)
        return float(np.frombuffer(pieces, dtype=np.float64).sum())

    def close(self) -> None:
        """Close this process's descriptor; others keep theirs."""
        os.close(self.file)
