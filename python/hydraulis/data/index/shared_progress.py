"""How many pieces processes have done, told while they are at them."""

import os
from typing import NamedTuple, Self

import numpy as np


class ProgressNotice(NamedTuple):
    """Among the answers of a process: it has come further, and `SharedProgress` says how far."""


class SharedProgress(NamedTuple):
    """How many pieces each process has done, with its share of the one that it is at.

    It is memory that they share, because their answers are read in the order of the pieces, and what one has
    done ahead of its turn is done as well.

    Attributes:
        file: in memory, of a double for each process.
    """

    file: int

    @classmethod
    def create(cls, processes: int) -> Self:
        """Make the memory."""
        file = os.memfd_create("pieces-done")
        os.truncate(file, 8 * processes)
        return cls(file)

    def write(self, process: int, pieces: float) -> None:
        """Say how many pieces a process has done."""
        os.pwrite(self.file, np.float64(pieces).tobytes(), 8 * process)

    def total(self) -> float:
        """Add up what all have done."""
        pieces = os.pread(self.file, os.fstat(self.file).st_size, 0)
        return float(np.frombuffer(pieces, dtype=np.float64).sum())

    def close(self) -> None:
        """Let go of the memory; processes that have it keep it."""
        os.close(self.file)
