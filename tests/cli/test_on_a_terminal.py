"""A command on a terminal: its progress bar, and Ctrl-C."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydraulis.cli.exit import EXIT_INTERRUPTED

DEADLINE_S = 60.0
# The child takes the terminal itself: code between fork and exec is unsafe with threads.
TAKE = (
    "import fcntl, os, sys, termios; "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'hydraulis', *sys.argv[1:]])"
)


class Screen:
    """A process on a terminal, and its output."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.terminal = terminal
        self.written = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.written:
            assert self._read(deadline), self.written

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait(self) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self.process.wait(DEADLINE_S)

    def _read(self, deadline: float) -> bool:
        assert select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0], self.written
        try:
            found = os.read(self.terminal, 65536)
        except OSError:
            # Linux reports a terminal that no process has open.
            return False
        self.written += found.decode()
        return found != b""


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[Screen]:
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE, *arguments],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"},
        start_new_session=True,
    )
    os.close(inside)
    try:
        yield Screen(process, terminal)
    finally:
        os.close(terminal)
        process.kill()
        process.wait()


def test_reading_shows_a_bar_and_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    # An open pipe without data keeps the command waiting at no CPU cost.
    lengths, output = tmp_path / "lengths.txt", tmp_path / "windows.npz"
    os.mkfifo(lengths)
    words = ("pack", "--lengths", str(lengths), "--window", "100", "--output", str(output))
    with on_a_terminal(*words) as screen, lengths.open("w") as writer:
        writer.write("17\n")
        writer.flush()
        screen.read_until("\x1b[?25l")
        screen.read_until("for 0:")
        screen.type("\x03")
        assert screen.wait() == EXIT_INTERRUPTED
    assert "reading the bytes of lengths.txt" in screen.written
    assert_quiet(screen)
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.txt"]


def test_a_command_in_the_core_ends_by_ctrl_c(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("".join(f"{100 + 37 * place % 9000}\n" for place in range(200)))
    words = ["simulate", "--profile", "llama-32b-a800", "--gpus", "64", "--lengths", str(lengths)]
    # The search would take very long.
    many = ["--tokens-per-batch", "200000", "--count", "4000", "--compare", "search"]
    with on_a_terminal(*words, *many) as screen:
        screen.read_until("simulating search")
        screen.type("\x03")
        assert screen.wait() == EXIT_INTERRUPTED
    assert_quiet(screen)


def test_a_terminated_command_leaves_a_whole_terminal_and_no_file(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    os.mkfifo(lengths)
    words = ("pack", "--lengths", str(lengths), "--window", "100", "--output", str(tmp_path / "windows.npz"))
    with on_a_terminal(*words) as screen, lengths.open("w") as writer:
        writer.write("17\n")
        writer.flush()
        screen.read_until("\x1b[?25l")
        screen.process.terminate()
        assert screen.wait() == EXIT_INTERRUPTED
    assert_quiet(screen)
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.txt"]


def assert_quiet(screen: Screen) -> None:
    assert "Traceback" not in screen.written
    # The cursor is visible again.
    assert screen.written.rfind("\x1b[?25h") > screen.written.rfind("\x1b[?25l")
