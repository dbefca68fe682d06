"""A long call is waited for, and left at once by Ctrl-C."""

import os
import signal
import threading

import pytest

from hydraulis.cli.interruptible import interruptible


def test_it_gives_what_the_work_gives() -> None:
    here = threading.current_thread()
    assert interruptible(lambda: threading.current_thread() is not here)


def test_it_raises_what_the_work_raises() -> None:
    def fail() -> None:
        message = "planted"
        raise ValueError(message)

    with pytest.raises(ValueError, match="planted"):
        interruptible(fail)


def test_an_interrupt_does_not_wait_for_the_work() -> None:
    may_end = threading.Event()
    ended = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        may_end.wait()
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        interruptible(work)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)
