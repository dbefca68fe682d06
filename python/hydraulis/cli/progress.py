"""Signs of life of a command that takes a while."""

import sys
import time
from collections.abc import Callable

_PAUSE = 2.0  # seconds of silence at first, and between two lines


class Progress:
    """Says on stderr how far a command has come, once it has taken more than two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def __call__(self, line: str) -> None:
        """Say `line`, unless something was said a moment ago."""
        now = self._clock()
        if now - self._last >= _PAUSE:
            self._last = now
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
