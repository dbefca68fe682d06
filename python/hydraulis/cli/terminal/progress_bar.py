"""The progress bar on a terminal. Importing it needs rich."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hydraulis.cli.terminal.activity import Activity


class ProgressBar:
    """A bar for the current activity, removed from the terminal when hidden.

    Args:
        out: Whether to draw on standard output instead of standard error.
        pause_s: Time between two updates.
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
            # The command's own output may go to a file, and must not pass through the bar.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", count="", time="")
        self._is_shown = False

    def show(self, activity: Activity) -> None:
        """Draw the activity."""
        if not self._is_shown:
            self._progress.start()
            self._is_shown = True
        self._progress.update(
            self._task,
            description=activity.name,
            completed=activity.done,
            total=activity.total or None,
            count=activity.count(),
            time=activity.time(time.monotonic()),
        )
        self._progress.refresh()

    def hide(self) -> None:
        """Remove the bar."""
        if self._is_shown:
            self._progress.stop()
            self._is_shown = False
