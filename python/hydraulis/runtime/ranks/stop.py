"""Ends a run after Ctrl-C, termination or hang-up, between two steps and on all ranks at the same step."""

import os
import signal
from types import FrameType
from typing import Self

import torch.distributed as dist

from hydraulis.runtime.ranks import host


class StopRequest:
    """Turns interrupt, termination and hang-up into a request, which the training loop reads between steps.

    If a rank left in the middle of a step, the other ranks would wait for it. Repeated signals have no
    effect: one Ctrl-C reaches a rank twice, from the terminal and from torchrun, which kills ranks that
    still run after TORCH_ELASTIC_SHUTDOWN_TIMEOUT (see `host_wait.py`). torchrun also forwards a hang-up,
    such as a dropped ssh connection. The end of torchrun itself, for example by a kill, is a request too: its
    ranks would otherwise continue unnoticed.

    Attributes:
        signal: First signal that this rank received; None without one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, signal._HANDLER] = {}
        # Another launcher, such as a background shell, may exit on purpose while its ranks continue.
        self._torchrun = os.getppid() if dist.is_torchelastic_launched() else None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # An ignored hang-up, as under nohup, stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Keep the handlers after the context: the process ends with an exit code of its own.

        torchrun terminates a rank that loses another one within a tenth of a second.
        """
        self._previous.clear()

    def is_requested(self) -> bool:
        """Return whether this rank has a request to stop."""
        return self.signal is not None or self._is_left_alone()

    def agreed(self) -> bool:
        """Return whether any rank has a request to stop, the same on all ranks. Collective."""
        # A request that arrives during the call is reported by the next call.
        return bool(host.largest(int(self.is_requested())))

    def is_ending(self) -> bool:
        """Return whether torchrun ends this rank, which it kills after TORCH_ELASTIC_SHUTDOWN_TIMEOUT."""
        return self._torchrun is not None and self.signal is not None

    def _is_left_alone(self) -> bool:
        """Return whether the torchrun process that started this rank has ended."""
        return self._torchrun is not None and os.getppid() != self._torchrun

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
