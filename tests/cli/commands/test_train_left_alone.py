"""A run that loses its reader, its terminal, the room for its output, its launcher or its first rank."""

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import pytest

from cli.commands.test_train import ENDLESS, KEEP_CODES, Launcher, assert_no_traceback_of_ours, finish, start
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_LOST_RANK, EXIT_REFUSED
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.reader import read_manifest
from train.small_run import STEPS, read_lines, write_quick_config

DEADLINE_S = 90.0


def started(
    folder: Path, output: int, steps: int = ENDLESS, launcher: Launcher = "hydraulis"
) -> "subprocess.Popen[str]":
    """Start a run that keeps its ranks' process ids and exit codes."""
    (folder / "sitecustomize.py").write_text(KEEP_CODES.format(place=folder))
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    options = ["--set", f"train.steps={steps}"]
    environment = {"PYTHONPATH": path, "TERM": "xterm-256color"}
    return start(
        [str(write_quick_config(folder)), *options], output, launcher, restarts=0, errors=None, **environment
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def num_recorded(folder: Path) -> int:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def codes(folder: Path) -> Sequence[str]:
    """Return the ranks' exit codes; they may outlive the launcher."""
    files = [folder / f"code-{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [file.read_text() for file in files]


def assert_stopped_with_a_checkpoint(folder: Path) -> None:
    assert codes(folder) == [str(EXIT_INTERRUPTED)] * 2
    steps = len(read_lines(folder / "run" / "metrics.jsonl"))
    assert STEPS <= steps < ENDLESS
    newest = CheckpointFolder.of_run(folder / "run").newest()
    assert newest is not None
    assert read_manifest(newest).step == steps


def end(process: "subprocess.Popen[str]") -> None:
    # The launcher, if it runs, passes the signal on to its ranks.
    process.terminate()
    process.wait(60)


def test_a_run_continues_without_a_reader(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = started(tmp_path, writer, 3 * STEPS)
    os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            assert any(line.startswith("step 1/") for line in lines)
        assert process.wait(DEADLINE_S) == 0
    finally:
        end(process)
    assert codes(tmp_path) == ["0", "0"]
    assert num_recorded(tmp_path) == 3 * STEPS
    newest = CheckpointFolder.of_run(tmp_path / "run").newest()
    assert newest is not None
    assert read_manifest(newest).step == 3 * STEPS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("full", ["output", "output and errors", "errors of --json"])
def test_a_run_continues_without_room_for_its_output(tmp_path: Path, full: str) -> None:
    words = [str(write_quick_config(tmp_path)), *(["--json"] if "--json" in full else [])]
    with Path("/dev/full").open("w") as device:
        output = device.fileno() if "output" in full else subprocess.PIPE
        errors = device.fileno() if "errors" in full else subprocess.PIPE
        code, out, err = finish(start(words, output, "hydraulis", errors=errors))
    assert code == 0
    assert_complete(tmp_path)
    if full == "output":
        assert err.startswith("hydraulis: standard output cannot be written: ")
        assert err.count("\n") == 1
    if "--json" in full:
        assert json.loads(out)["finished"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("launcher", get_args(Launcher))
def test_a_summary_without_room_is_refused_after_the_run(tmp_path: Path, launcher: Launcher) -> None:
    words = [str(write_quick_config(tmp_path)), "--json"]
    with Path("/dev/full").open("w") as device:
        code, _, err = finish(start(words, device.fileno(), launcher, errors=subprocess.PIPE))
    assert code == (EXIT_REFUSED if launcher == "hydraulis" else 1)
    assert " error [file_unwritable]: standard output cannot be written: " in err
    assert_no_traceback_of_ours(err)
    assert_complete(tmp_path)


def assert_complete(folder: Path) -> None:
    assert num_recorded(folder) == STEPS
    newest = CheckpointFolder.of_run(folder / "run").newest()
    assert newest is not None
    assert read_manifest(newest).step == STEPS


def test_a_terminal_that_is_closed_stops_a_run_with_a_checkpoint(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    process = started(tmp_path, inside)
    os.close(inside)
    try:
        try:
            wait_until(lambda: drained(terminal) and num_recorded(tmp_path) >= STEPS)
        finally:
            os.close(terminal)
        # The kernel does this if the launcher controls the terminal.
        process.send_signal(signal.SIGHUP)
        process.wait(DEADLINE_S)
    finally:
        end(process)
    assert_stopped_with_a_checkpoint(tmp_path)


@pytest.mark.parametrize("launcher", get_args(Launcher))
def test_ranks_do_not_outlive_their_launcher(tmp_path: Path, launcher: Launcher) -> None:
    with Path(os.devnull).open("w") as nowhere:
        process = started(tmp_path, nowhere.fileno(), launcher=launcher)
    try:
        wait_until(lambda: num_recorded(tmp_path) >= STEPS)
        process.kill()
        assert_stopped_with_a_checkpoint(tmp_path)
    finally:
        end(process)
        for rank in range(2):
            if not (tmp_path / f"code-{rank}").exists():
                os.kill(int((tmp_path / f"process-{rank}").read_text()), signal.SIGKILL)


def test_on_a_terminal_the_loss_of_rank_zero_is_reported_below_its_line(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    process = started(tmp_path, inside)
    os.close(inside)
    written = bytearray()
    try:
        wait_until(lambda: drained(terminal, written) and num_recorded(tmp_path) >= STEPS)
        os.kill(int((tmp_path / "process-0").read_text()), signal.SIGKILL)
        wait_until(lambda: drained(terminal, written) and process.poll() is not None)
        drained(terminal, written)
    finally:
        end(process)
        os.close(terminal)
    assert (tmp_path / "code-1").read_text() == str(EXIT_LOST_RANK)
    (error,) = (line for line in written.decode().split("\n") if "hydraulis: error " in line)
    assert error.startswith("hydraulis: error [lost_rank]: SIGKILL ended rank 0: ")
    assert "\x1b[?25h" in written.decode()


def drained(terminal: int, kept: bytearray | None = None) -> bool:
    """Read the available output, so that writers do not block; always true."""
    os.set_blocking(terminal, False)
    try:
        while found := os.read(terminal, 65536):
            if kept is not None:
                kept += found
    except OSError:
        # No output is available, or no process has the terminal open.
        pass
    return True
