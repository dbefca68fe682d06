"""Work beside computation: on CUDA a stream of its own; on the CPU it is done at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A queue of device work that follows computation, and that computation does not wait for unless told to.

    On the CPU there is none: what is called is done when the call returns.

    Args:
        device: of the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

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
        """Let this thread wait for it."""
        if self._event is not None:
            self._event.synchronize()
