"""One long call, ended by Ctrl-C at once."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def interruptible(work: Callable[[], T]) -> T:
    """Run `work` in a thread and wait for it, so that an interrupt need not wait for native code to return.

    An interrupt leaves the thread to itself: `work` may compute, but must hold nothing that has to be given
    back. It ends with the process, which is why the command does not go through the interpreter's end.

    Args:
        work: that is run once.

    Returns:
        What it returns.

    Raises:
        BaseException: what it raises; KeyboardInterrupt when that came first.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        # Whatever it is, it goes on in the thread that waits.
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="interruptible", daemon=True).start()
    return future.result()
