"""Work beside computation: on CUDA a stream of its own; on the CPU it is done at once.

Torch hands streams out in turn from 32 of each priority, so the 33rd is the first one again, and what is put
there waits for what is there (c10/cuda/CUDAStream.h). The groups of stages take theirs from those of normal
priority, one each. So what travels beside computation, and must hold none of them up, takes a high priority,
as little else does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# As torch counts: the lower the number, the sooner it runs.
_HIGH_PRIORITY = -1


class SideStream:
    """A queue of device work that follows computation, and that computation does not wait for unless told to.

    On the CPU there is none: what is called is done when the call returns. Make few, and keep them.

    Args:
        device: of the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=_HIGH_PRIORITY) if device.type == "cuda" else None

    @property
    def is_apart(self) -> bool:
        """Whether work here waits in its own queue, so that nobody is held up by putting it there."""
        return self._stream is not None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Put device work here, after all that was computed until now."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let what is computed from now on wait for all that was put here."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Landmark:
    """A point in the current stream's work that others can wait for.

    Args:
        device: of the stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))

    def is_completed(self) -> bool:
        """Whether the device has come to it."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Let the current stream wait for it; the host does not."""
        if self._event is not None:
            self._event.wait()

    def synchronize(self) -> None:
        """Let this thread wait for it, whichever it is."""
        if self._event is not None:
            # A thread's device is the node's first one until it names another, and CUDA makes whatever thread
            # calls it a context there: some 500 MB of a device that is another rank's.
            with torch.cuda.device(self._device):
                self._event.synchronize()
