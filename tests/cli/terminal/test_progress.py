"""Progress: a bar on a terminal, lines elsewhere, and a thread that runs only during an activity."""

import io
import re
import sys
import threading
import time
from collections.abc import Callable

import pytest

from hydraulis.cli.terminal.progress import Progress

SOON = 0.01
NEVER = 3600.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace standard error, inside the test because pytest replaces it before."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    return stderr


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(SOON)


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_an_activity_is_shown_repeatedly_without_further_reports(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ""

    def is_shown() -> bool:
        nonlocal lines
        lines += capsys.readouterr().err
        return lines.count("12 of 50") >= 3

    with Progress(line_s=SOON) as progress:
        progress("simulating search", 2, 50)
        progress("simulating search", 12, 50)
        wait_until(is_shown)
    for line in lines.splitlines():
        assert re.fullmatch(r"simulating search: (2 of 50, for|12 of 50, \d+:\d\d left).*", line)
    assert capsys.readouterr().out == ""


def test_a_short_activity_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(line_s=NEVER) as progress:
        for done in range(1000):
            progress("simulating search", done, 1000)
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_standard_output_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(out=True, line_s=SOON) as progress:
        progress.share("measuring")(0.5)
        wait_until(lambda: "measuring: 50%" in capsys.readouterr().out)


def test_the_thread_runs_only_during_an_activity() -> None:
    assert timers() == []
    with Progress(line_s=NEVER) as progress:
        assert timers() == []
        progress("opening the data")
        progress("planning", 1, 2)
        assert len(timers()) == 1
        progress.stop()
        assert timers() == []
        progress("comparing")
        assert len(timers()) == 1
    assert timers() == []


def test_a_report_after_the_end_starts_no_thread() -> None:
    with Progress(line_s=NEVER) as progress:
        report = progress.share("packing")
    progress("comparing")
    report(0.5)
    assert timers() == []


def test_a_bar_shows_count_and_time_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with Progress(patience_s=SOON) as progress:
        progress("[simulating] search", 2, 50)
        progress("[simulating] search", 12, 50)
        wait_until(lambda: "12 of 50" in terminal.getvalue())
        shown = terminal.getvalue()
        with progress.aside():
            hidden = terminal.getvalue()
            for done in range(1000):
                terminal.write("printed ")
                progress("[simulating] search", done, 1000)
    # Output is printed without the bar in between.
    assert terminal.getvalue()[len(hidden) :].startswith("printed " * 1000)
    assert "[simulating] search" in shown
    assert "━" in shown
    assert "left" in shown
    for text in (hidden, terminal.getvalue()):
        # The line is erased and the cursor visible.
        assert text.rfind("\x1b[2K") > text.rfind("12 of 50")
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0


def test_no_bar_appears_before_its_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with Progress(patience_s=NEVER) as progress:
        progress("simulating search", 12, 50)
    assert terminal.getvalue() == ""


def test_an_error_leaves_the_cursor_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)

    def fail() -> None:
        with Progress(patience_s=SOON) as progress:
            progress("simulating search", 12, 50)
            wait_until(lambda: "12 of 50" in terminal.getvalue())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "hydraulis.cli.terminal.progress_bar", None)
    with Progress(line_s=SOON) as progress:
        progress("planning 9 sequences")
        wait_until(lambda: "planning 9 sequences: for 0:" in terminal.getvalue())
    assert "\x1b" not in terminal.getvalue()
