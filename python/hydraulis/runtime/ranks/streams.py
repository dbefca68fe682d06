"""Side streams: on CUDA their work overlaps computation; on the CPU the work is done at once.

Torch reuses 32 streams of each priority in turn, so the 33rd stream is the first one again, and work on it
waits for earlier work there (c10/cuda/CUDAStream.h). Each group of a stage takes a normal-priority stream.
Transfers that overlap computation must not delay these groups, so they use high-priority streams, which few
others use.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# torch's convention: a lower number is a higher priority.
_HIGH_PRIORITY = -1


class SideStream:
    """A stream whose work starts after earlier computation; later computation waits for it only at `join`.

    On the CPU there is no stream: the work is complete when the call returns. Streams are scarce: create few
    and reuse them.

    Args:
        device: Device of the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=_HIGH_PRIORITY) if device.type == "cuda" else None

    @property
    def is_apart(self) -> bool:
        """Whether work runs in a queue of its own, so that issuing it does not block the caller."""
        return self._stream is not None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Issue the block's device work on this stream, after all computation issued so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Make later computation wait for all work issued on this stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class StreamEvent:
    """An event in the current stream, which streams and host threads can wait for.

    Args:
        device: Device of the stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))

    def is_completed(self) -> bool:
        """Return whether the device has reached the event."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Make the current stream wait for the event; the host does not wait."""
        if self._event is not None:
            self._event.wait()

    def synchronize(self) -> None:
        """Block the calling thread, which may be any thread, until the device reaches the event."""
        if self._event is not None:
            # A new thread's current device is the node's first one, and a CUDA call creates a context there:
            # about 500 MB on a device that belongs to another rank.
            with torch.cuda.device(self._device):
                self._event.synchronize()
