"""The bar on a terminal. Importing it needs rich."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hydraulis.cli.terminal.step import Step


class ProgressBar:
    """One bar, of whatever step is shown; it comes with the first and leaves nothing behind.

    Args:
        out: whether it is drawn on standard output in place of standard error.
        pause_s: between two looks at it.
    """

    def __init__(self, *, out: bool, pause_s: float) -> None:
        self.pause_s = pause_s
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[time]}"),
            console=Console(stderr=not out),
            transient=True,
            auto_refresh=False,
            # What a command prints is not the bar's business, and may go to a file.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", count="", time="")
        self._shown = False

    def show(self, step: Step) -> None:
        """Draw the step."""
        if not self._shown:
            self._progress.start()
            self._shown = True
        self._progress.update(
            self._task,
            description=step.name,
            completed=step.done,
            total=step.of or None,
            count=step.count(),
            time=step.time(time.monotonic()),
        )
        self._progress.refresh()

    def hide(self) -> None:
        """Take it away."""
        if self._shown:
            self._progress.stop()
            self._shown = False
