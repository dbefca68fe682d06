"""Progress of a command: a bar on a terminal, a line now and then anywhere else."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from hydraulis.cli.terminal.activity import Activity

# Time before a bar appears: one that comes and goes at once is noise.
PATIENCE_S = 2.0
# Time between updates of a bar, long enough that threads which measure or launch kernels lose no time.
REFRESH_S = 0.25
# Time between lines of a log.
LINE_S = 10.0


class Surface(Protocol):
    """Output that shows an activity.

    Attributes:
        pause_s: Time between two updates.
    """

    pause_s: float

    def show(self, activity: Activity) -> None:
        """Show the activity's current progress."""

    def hide(self) -> None:
        """Remove it, so that other output can be written."""


class Lines:
    """Lines of a log, one per update.

    Args:
        out: Whether to write to standard output instead of standard error.
        pause_s: Time between two lines.
    """

    def __init__(self, *, out: bool, pause_s: float) -> None:
        self._out = out
        self.pause_s = pause_s

    def show(self, activity: Activity) -> None:
        """Write a line."""
        stream = sys.stdout if self._out else sys.stderr
        facts = ", ".join(filter(None, (activity.count(), activity.time(time.monotonic()))))
        stream.write(f"{activity.name}: {facts}\n")
        stream.flush()

    def hide(self) -> None:
        """Do nothing: lines stay."""


class Progress:
    """Shows a command's current activity if it takes long.

        with Progress() as progress:
            compare(setting, names, progress)

    A thread does the showing: reporting progress costs the caller no time, and a single long activity is
    shown too. On a terminal it draws a bar after two seconds. In a file, or without rich, it writes a line
    every ten seconds.

    Args:
        out: Whether to use standard output instead of standard error.
        patience_s: Time before a bar appears.
        line_s: Time before the first line and between two lines.
    """

    def __init__(self, *, out: bool = False, patience_s: float = PATIENCE_S, line_s: float = LINE_S) -> None:
        self._surface: Surface
        try:
            self._surface = _bar(out=out) if _is_terminal(out=out) else Lines(out=out, pause_s=line_s)
        except ImportError:
            self._surface = Lines(out=out, pause_s=line_s)
        self._first_s = line_s if isinstance(self._surface, Lines) else patience_s
        self._activity: Activity | None = None
        # Held while the surface or the command writes.
        self._lock = threading.Lock()
        self._timer: _Timer | None = None
        # Reports that arrive after the end are ignored.
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self.stop()

    def __call__(self, name: str, done: int = 0, total: int = 0) -> None:
        """Report progress of an activity.

        Args:
            name: Name of the activity; a new name starts a new one.
            done: Number of completed items.
            total: Number of all items; 0 if unknown.
        """
        self._report(name, done, total, is_share=False)

    def share(self, name: str) -> Callable[[float], None]:
        """Return a callback that reports an activity by its completed share, from 0 to 1."""
        return lambda share: self._report(name, round(1000 * share), 1000, is_share=True)

    def stop(self) -> None:
        """End the current activity; no thread runs until the next report."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.end()
        self._activity = None
        self._surface.hide()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while the body writes other output."""
        with self._lock:
            self._surface.hide()
            yield

    def _report(self, name: str, done: int, total: int, *, is_share: bool) -> None:
        if self._closed:
            return
        before = self._activity
        now_s = time.monotonic()
        started_s, updated_s, first = now_s, now_s, done
        if before is not None and before.name == name:
            started_s, first = before.started_s, before.first
            updated_s = before.updated_s if before.done == done else now_s
        self._activity = Activity(name, done, total, started_s, updated_s, first, is_share)
        if self._timer is None:
            self._timer = _Timer(self._show, self._first_s, self._surface.pause_s)

    def _show(self) -> None:
        with self._lock:
            if self._activity is not None:
                self._surface.show(self._activity)


class _Timer:
    """A thread that calls a function periodically."""

    def __init__(self, function: Callable[[], None], first_s: float, pause_s: float) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(function, first_s, pause_s), name="progress", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Wait for the thread's end."""
        self._ended.set()
        self._thread.join()

    def _run(self, function: Callable[[], None], first_s: float, pause_s: float) -> None:
        wait_s = first_s
        while not self._ended.wait(wait_s):
            wait_s = pause_s
            function()


def _is_terminal(*, out: bool) -> bool:
    return (sys.stdout if out else sys.stderr).isatty()


def _bar(*, out: bool) -> Surface:
    """Build a bar.

    Raises:
        ImportError: rich is not installed.
    """
    # Imported on terminals alone: planning commands work without rich.
    from hydraulis.cli.terminal.progress_bar import ProgressBar

    return ProgressBar(out=out, pause_s=REFRESH_S)
