"""How far a command has come: a bar on a terminal, a line now and then anywhere else."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from hydraulis.cli.terminal.lines import Lines
from hydraulis.cli.terminal.step import Step

# A bar that comes and goes at once is only noise.
PATIENCE_S = 2.0
# Of a bar. Seldom enough that a thread which measures or launches kernels does not notice.
REFRESH_S = 0.25
# Of lines, in a log that somebody reads later.
LINE_S = 10.0


class Surface(Protocol):
    """What a step is shown on."""

    pause_s: float

    def show(self, step: Step) -> None:
        """Show a step."""

    def hide(self) -> None:
        """Leave nothing behind that something else would be written into."""


class Progress:
    """Tells how far a command has come, if that takes long: the one place of all commands that does.

        with Progress() as progress:
            compare(setting, names, progress)

    A thread tells it, so that whoever says how far it is loses no time by it, and a single long step is seen
    as well. On a terminal it is a bar that comes after two seconds; where that is none, or rich is missing, a
    line every ten seconds.

    Args:
        out: whether it is told on standard output in place of standard error.
        patience_s: before a bar comes.
        line_s: between two lines, and before the first one.
    """

    def __init__(self, *, out: bool = False, patience_s: float = PATIENCE_S, line_s: float = LINE_S) -> None:
        self._surface: Surface
        try:
            self._surface = _bar(out=out) if _is_terminal(out=out) else Lines(out=out, pause_s=line_s)
        except ImportError:
            self._surface = Lines(out=out, pause_s=line_s)
        self._first_s = line_s if isinstance(self._surface, Lines) else patience_s
        self._step: Step | None = None
        # Held while something is written.
        self._lock = threading.Lock()
        self._teller: _Teller | None = None
        # What is still told after that is told by nobody.
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self.stop()

    def __call__(self, name: str, done: int = 0, of: int = 0) -> None:
        """Say what is being done, and how much of how much of it is; 0 where that is not known."""
        self._set(name, done, of, is_share=False)

    def share(self, name: str) -> Callable[[float], None]:
        """Give what takes the share of a step that is done, from 0 to 1."""
        return lambda share: self._set(name, round(1000 * share), 1000, is_share=True)

    def stop(self) -> None:
        """Say that nothing is being done that has to be told of; there is no thread then."""
        teller, self._teller = self._teller, None
        if teller is not None:
            teller.end()
        self._step = None
        self._surface.hide()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let something else be written: the bar is away meanwhile."""
        with self._lock:
            self._surface.hide()
            yield

    def _set(self, name: str, done: int, of: int, *, is_share: bool) -> None:
        if self._closed:
            return
        step = self._step
        now_s = time.monotonic()
        began_s, marked_s, first = now_s, now_s, done
        if step is not None and step.name == name:
            began_s, first = step.began_s, step.first
            marked_s = step.marked_s if step.done == done else now_s
        self._step = Step(name, done, of, began_s, marked_s, first, is_share)
        if self._teller is None:
            self._teller = _Teller(self._show, self._first_s, self._surface.pause_s)

    def _show(self) -> None:
        with self._lock:
            if self._step is not None:
                self._surface.show(self._step)


class _Teller:
    """A thread that does something first after a while, and then again and again."""

    def __init__(self, show: Callable[[], None], first_s: float, pause_s: float) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(show, first_s, pause_s), name="progress", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Wait until it is over."""
        self._ended.set()
        self._thread.join()

    def _run(self, show: Callable[[], None], first_s: float, pause_s: float) -> None:
        wait_s = first_s
        while not self._ended.wait(wait_s):
            wait_s = pause_s
            show()


def _is_terminal(*, out: bool) -> bool:
    return (sys.stdout if out else sys.stderr).isatty()


def _bar(*, out: bool) -> Surface:
    """Make a bar.

    Raises:
        ImportError: rich is not installed.
    """
    # Only where there is a terminal: the scheduler works without rich, and most calls end before.
    from hydraulis.cli.terminal.progress_bar import ProgressBar

    return ProgressBar(out=out, pause_s=REFRESH_S)
