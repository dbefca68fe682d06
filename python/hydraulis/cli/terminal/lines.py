"""Progress where there is no terminal: a line now and then."""

import sys
import time

from hydraulis.cli.terminal.step import Step


class Lines:
    """A log: a line for each time that a step is shown."""

    def __init__(self, *, out: bool, pause_s: float) -> None:
        self._out = out
        self.pause_s = pause_s

    def show(self, step: Step) -> None:
        """Write a line."""
        stream = sys.stdout if self._out else sys.stderr
        facts = ", ".join(filter(None, (step.count(), step.time(time.monotonic()))))
        stream.write(f"{step.name}: {facts}\n")
        stream.flush()

    def hide(self) -> None:
        """Do nothing: lines stay."""
