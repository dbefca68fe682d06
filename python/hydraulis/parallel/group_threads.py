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
    """Knows the threads of some groups.

    A thread that anything else in the process starts while a group is made is taken for one of them. The time
    of one that has ended stays what it was when last asked. Where the system does not list threads, as Linux
    does, or does not let their clocks be read, there are none.
    """

    def __init__(self) -> None:
        # What each thread had taken when last asked, by its clock; which of the clocks are still read.
        self._taken_s: dict[int, float] = {}
        self._running: set[int] = set()

    @property
    def count(self) -> int:
        """How many threads there were, those that have ended included."""
        return len(self._taken_s)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Take the threads that start while the context lasts, in which groups are made and nothing else is.

        By when they start, not by their names: a thread names itself, which may be later.
        """
        before = _threads()
        yield
        for thread in sorted(_threads() - before):
            clock = _clock(thread)
            self._running.add(clock)
            self._read(clock)

    def cpu_s(self) -> float:
        """Give the CPU time of all of them so far, in seconds."""
        for clock in tuple(self._running):
            self._read(clock)
        return sum(self._taken_s.values())

    def _read(self, clock: int) -> None:
        try:
            self._taken_s[clock] = time.clock_gettime(clock)
        except OSError:
            self._running.discard(clock)


def _threads() -> set[int]:
    return {int(path.name) for path in _TASKS.iterdir()} if _TASKS.is_dir() else set()


def _clock(thread: int) -> int:
    # As the kernel names a thread's clock: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED of posix-timers.h.
    return (~thread << 3) | 4 | 2
