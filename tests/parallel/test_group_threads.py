"""CPU time of threads that start while groups are made, by clocks that the tests hold."""

import errno
import threading
import time

import pytest

from hydraulis.parallel import group_threads
from hydraulis.parallel.group_threads import GroupThreads


class Clocks:
    """What the clocks of threads show; those of other threads cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: set[int] = {1}
        self.shown_s: dict[int, float] = {}
        monkeypatch.setattr(group_threads, "_threads", lambda: set(self.threads))
        monkeypatch.setattr(group_threads, "_clock", lambda thread: thread)
        monkeypatch.setattr(time, "clock_gettime", self._read)

    def start(self, threads: GroupThreads, **shown_s: float) -> None:
        """Let threads t2, t3, ... start, whose clocks show so much."""
        with threads.starting():
            self.threads |= {int(name[1:]) for name in shown_s}
            self.shown_s |= {int(name[1:]): seconds for name, seconds in shown_s.items()}

    def _read(self, clock: int) -> float:
        if clock not in self.shown_s:
            raise OSError(errno.EINVAL, "no such clock")
        return self.shown_s[clock]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_threads_of_groups_are_counted_whenever_they_start_and_no_others(clocks: Clocks) -> None:
    threads = GroupThreads()
    assert (threads.count, threads.cpu_s()) == (0, 0.0)
    clocks.shown_s[1] = 100.0
    clocks.start(threads, t2=1.0, t3=2.0)
    clocks.threads.add(4)
    clocks.shown_s[4] = 100.0
    clocks.start(threads, t5=4.0)
    assert (threads.count, threads.cpu_s()) == (3, 7.0)
    clocks.shown_s[3] = 10.0
    assert threads.cpu_s() == 15.0


def test_of_a_thread_that_ended_the_last_value_stays(clocks: Clocks) -> None:
    threads = GroupThreads()
    clocks.start(threads, t2=1.0, t3=2.0)
    clocks.shown_s = {2: 8.0, 3: 3.0}
    assert threads.cpu_s() == 11.0
    clocks.shown_s = {3: 4.0}
    assert threads.cpu_s() == 12.0
    # Another thread of the same number is not it.
    clocks.shown_s = {2: 1.0, 3: 5.0}
    assert threads.cpu_s() == 13.0


def test_threads_whose_clocks_are_not_granted_are_none(clocks: Clocks) -> None:
    threads = GroupThreads()
    with threads.starting():
        clocks.threads |= {2, 3}
    assert (threads.count, threads.cpu_s()) == (0, 0.0)


@pytest.mark.skipif(not group_threads._TASKS.is_dir(), reason="threads are known on Linux alone")
def test_a_thread_that_python_starts_meanwhile_may_end() -> None:
    threads = GroupThreads()
    done = threading.Event()
    meanwhile = threading.Thread(target=done.wait)
    with threads.starting():
        meanwhile.start()
    assert threads.count == 1
    done.set()
    meanwhile.join()
    # Python is done with it before the system is.
    while meanwhile.native_id in group_threads._threads():
        time.sleep(0.001)
    assert threads.cpu_s() > 0
