"""Waits of the host for its device, which end when another rank is lost.

A blocked call of CUDA returns neither for a signal nor for a rank that ended: the kernels of NCCL wait for it
on the device. The host therefore asks for an event again and again, and in between looks at the loss that the
liveness thread has found, at a request to stop, at errors of NCCL, and at the time.
"""

import os
import time
from collections.abc import Callable

import torch

from hydraulis.runtime.ranks.flight_recorder import find_nccl_error
from hydraulis.runtime.ranks.liveness.check import broken_connection, lost_rank
from hydraulis.runtime.ranks.liveness.heartbeat import current
from hydraulis.runtime.ranks.streams import StreamEvent

_POLL_S = 0.001
# Time after the request to end at which torchrun kills a rank: by this variable, which ranks inherit.
_SHUTDOWN, _SHUTDOWN_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30.0
# Seconds before that in which the loss is reported.
_REPORT_S = 5.0
# Seconds between two looks at the groups' errors.
_ERROR_S = 1.0


def wait_for_device(device: torch.device, poll_s: float = _POLL_S) -> None:
    """Wait until the device has completed all work of the current stream; returns at once on the CPU.

    Args:
        device: Device of the work.
        poll_s: Seconds between two questions, as of `wait_until`.

    Raises:
        HydraulisError: As `wait_until`.
    """
    event = StreamEvent(device)
    wait_until(event.is_completed, poll_s)
    event.synchronize()


def wait_until(is_completed: Callable[[], bool], poll_s: float = _POLL_S) -> None:
    """Wait until an event is completed; return at once if this process has no heartbeat.

    Args:
        is_completed: Function that returns whether the device has reached the event.
        poll_s: Seconds between two questions; 0 to ask without a pause, for a time that is measured.

    Raises:
        HydraulisError: Another rank was lost or has failed, NCCL reported an error, the wait took longer than
            `train.timeout_s`, or torchrun ends this rank and the device does not complete its work (code
            `lost_rank`).
    """
    heartbeat = current()
    if heartbeat is None:
        return
    start, ending = time.monotonic(), None
    looked, last_s = start, _last_s()
    while not is_completed():
        now = time.monotonic()
        if heartbeat.lost is not None:
            raise heartbeat.lost
        if ending is None and heartbeat.is_ending():
            ending = now
        if now - looked > _ERROR_S:
            looked, error = now, find_nccl_error()
            if error is not None:
                raise broken_connection(RuntimeError(f"NCCL reported {error}"), heartbeat.then())
        if ending is not None and now - ending > last_s:
            why = (
                "torchrun asked this rank to end, and the device did not complete its work within "
                f"{last_s:g} s: another rank's report has the cause, or torchrun's; a longer {_SHUTDOWN} "
                "gives more time"
            )
            raise lost_rank(why, heartbeat.then())
        too_long = heartbeat.waited_too_long(now - start)
        if too_long is not None:
            raise lost_rank(too_long, heartbeat.then())
        if poll_s:
            time.sleep(poll_s)


def _last_s() -> float:
    """Return the seconds that this rank has for its work after a request to end."""
    try:
        seconds = float(os.environ.get(_SHUTDOWN, _SHUTDOWN_S))
    except ValueError:
        seconds = _SHUTDOWN_S
    return max(1.0, seconds - _REPORT_S)
