"""Ctrl-C, termination and hang-up end a run between two steps, on all ranks at the same one."""

import os
import signal
from types import FrameType
from typing import Self

import torch
import torch.distributed as dist


class StopRequest:
    """Turns interrupt, termination and hang-up into a request, which the training loop honours between steps.

    A rank that left in the middle of a step would leave the others waiting for it. Repeats change nothing:
    one Ctrl-C reaches a rank twice, from the terminal and from torchrun, which ends ranks that go on for
    30 s. torchrun passes a hang-up on likewise, as when an ssh connection drops. That torchrun itself is
    gone, killed say, is a request too: its ranks would go on where nobody knows of them.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: dict[int, signal._HANDLER] = {}
        # What else starts ranks may leave them on purpose, such as a shell in the background.
        self._torchrun = os.getppid() if dist.is_torchelastic_launched() else None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A hang-up that was to be ignored, as under nohup, still is.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def agreed(self) -> bool:
        """Whether any rank has been asked to stop; the same answer on all. Collective."""
        agreed = torch.tensor(int(self._requested or self._is_left_alone()))
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        # A request that arrives during the call keeps standing, for the next one.
        return bool(agreed)

    def _is_left_alone(self) -> bool:
        """Whether torchrun, which started this rank, is gone."""
        return self._torchrun is not None and os.getppid() != self._torchrun

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self._requested = True
