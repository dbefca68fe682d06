"""Waits of the host for its device, which end when another rank is lost.

A blocked call of CUDA returns neither for a signal nor for a rank that ended: the kernels of NCCL wait for it
on the device. The host therefore asks for an event again and again, and in between looks at the loss that the
liveness thread has found, at a request to stop, and at the time.
"""

import time
from collections.abc import Callable

import torch

from hydraulis.runtime.ranks.liveness.check import lost_rank
from hydraulis.runtime.ranks.liveness.heartbeat import current
from hydraulis.runtime.ranks.streams import StreamEvent

_POLL_S = 0.001
# torchrun kills a rank that still runs 30 s after the request to end: the loss is reported before.
_LAST_S = 25.0


def wait_for_device(device: torch.device) -> None:
    """Wait until the device has completed all work of the current stream; returns at once on the CPU.

    Raises:
        HydraulisError: As `wait_until`.
    """
    event = StreamEvent(device)
    wait_until(event.is_completed)
    event.synchronize()


def wait_until(is_completed: Callable[[], bool]) -> None:
    """Wait until an event is completed; return at once if this process has no heartbeat.

    Args:
        is_completed: Function that returns whether the device has reached the event.

    Raises:
        HydraulisError: Another rank was lost or has failed, the wait took longer than `train.timeout_s`, or
            torchrun ends this rank and the device does not complete its work (code `lost_rank`).
    """
    heartbeat = current()
    if heartbeat is None:
        return
    start, ending = time.monotonic(), None
    while not is_completed():
        now = time.monotonic()
        if heartbeat.lost is not None:
            raise heartbeat.lost
        if ending is None and heartbeat.is_ending():
            ending = now
        if ending is not None and now - ending > _LAST_S:
            why = f"asked to end, and the device did not complete its work within {_LAST_S:g} s"
            raise lost_rank(RuntimeError(why), heartbeat.then())
        if heartbeat.timeout_s is not None and now - start > heartbeat.timeout_s:
            why = f"the device waited longer than train.timeout_s = {heartbeat.timeout_s:g} s"
            raise lost_rank(RuntimeError(why), heartbeat.then())
        time.sleep(_POLL_S)
