"""CPU time of the threads that exchanges of process groups run on.

gloo sends, receives and adds up on threads of its own, three for each group. No clock of the calling
thread sees them, and that of the process sees whatever else runs in it, such as other groups' exchanges.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TASKS = Path("/proc/self/task")


class GroupThreads:
    """Knows the threads of some groups; where the system does not list threads, as Linux does, none."""

    def __init__(self) -> None:
        self._clocks: list[int] = []

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Take the threads that start while the context lasts, in which groups are made and nothing else is.

        By when they start, not by their names: a thread names itself, which may be later.
        """
        before = _threads()
        yield
        self._clocks += [_clock(thread) for thread in sorted(_threads() - before)]

    def cpu_s(self) -> float:
        """Give the CPU time of all of them so far, in seconds."""
        return sum(time.clock_gettime(clock) for clock in self._clocks)

    def __len__(self) -> int:
        """The number of threads."""
        return len(self._clocks)


def _threads() -> set[int]:
    return {int(path.name) for path in _TASKS.iterdir()} if _TASKS.is_dir() else set()


def _clock(thread: int) -> int:
    # As the kernel names a thread's clock: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED of posix-timers.h.
    return (~thread << 3) | 4 | 2
