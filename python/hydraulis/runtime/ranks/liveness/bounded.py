"""Bounds the time of a call that may never return, such as a request to a store that stands still."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_S = 0.05


class Stopped(Exception):  # noqa: N818 - no error
    """The call was left because of a request to stop."""


class BackgroundCall(Generic[T]):
    """A call on a thread of its own, which the caller may leave before it ends.

    Attributes:
        ended: Event of the call's end.
        error: Exception of the call; None before its end, and of a call that returned.

    Args:
        function: Function to call.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._result: list[T] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        # A daemon thread: the process may end while the call is still blocked.
        # The thread forgets the function and its references when it ends.
        threading.Thread(target=self._run, args=(function,), name="bounded call", daemon=True).start()

    def result(self) -> T:
        """Return the call's result after its end, or raise its exception."""
        if self.error is not None:
            raise self.error
        return self._result[0]

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._result.append(function())
        except BaseException as error:
            self.error = error
        self.ended.set()


def call_within(seconds: float, function: Callable[[], T], stopped: Callable[[], bool] = lambda: False) -> T:
    """Call `function` on another thread, and return its result.

    The calling thread stays in Python while it waits, so it handles signals although the call is blocked in
    native code.

    Args:
        seconds: Most time of the call.
        function: Function to call.
        stopped: Returns whether to leave the call.

    Raises:
        TimeoutError: The call took longer; its thread is left behind.
        Stopped: `stopped` returned true; the thread is left behind.
        BaseException: The error of `function`.
    """
    call, deadline = BackgroundCall(function), time.monotonic() + seconds
    while not call.ended.wait(_POLL_S):
        if stopped():
            raise Stopped
        if time.monotonic() > deadline:
            raise TimeoutError
    return call.result()
