"""What the ranks of test_stop.py do."""

import os
import signal
import threading
import time

import torch.distributed as dist

from hydraulis.runtime.ranks.stop import StopRequest


def agree(asked_rank: int, number: int) -> list[bool]:
    """Ask one rank to stop between the first agreement and the second."""
    with StopRequest() as stop:
        answers = [stop.agreed()]
        if dist.get_rank() == asked_rank:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        answers += [stop.agreed(), stop.agreed()]
    return answers


def agree_after_each_signal() -> list[bool]:
    # Under nohup a process starts with hang-ups ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return agree(2, signal.SIGTERM) + agree(0, signal.SIGINT) + agree(1, signal.SIGHUP)


def agree_after_its_parent(variable: str) -> list[bool]:
    """Let the parent of rank 1 be gone between the first agreement and the second.

    Args:
        variable: Variable of the environment that names the ranks' launcher.
    """
    os.environ[variable] = "1"
    with StopRequest() as stop:
        answers = [stop.agreed()]
        if dist.get_rank() == 1:
            setattr(os, "getppid", lambda: 1)  # noqa: B010
        answers.append(stop.agreed())
    return answers


def agree_while_interrupted() -> list[bool]:
    """Interrupt rank 0 while it waits for rank 1 to come to the same agreement."""
    with StopRequest() as stop:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        if dist.get_rank() == 0:
            timer.start()
        else:
            time.sleep(0.8)
        answers = [stop.agreed(), stop.agreed()]
        if dist.get_rank() == 0:
            timer.join()
    return answers
