"""Ranks of this machine: they end with the first failure and when the command is asked to, and one speaks."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.ranks.local_ranks import run_local_ranks
from hydraulis.cli.ranks.rank import PARENT

_RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
{act}
"""

# Both listen before rank 0 asks the command to end; each takes a moment to leave.
_WAIT = """
folder = {folder!r}
def leave(*_):
    time.sleep(0.2)
    open(f"{{folder}}/{{rank}}.ended", "w").close()
    sys.exit(130)
signal.signal(signal.SIGTERM, leave)
open(f"{{folder}}/{{rank}}.ready", "w").close()
while not all(os.path.exists(f"{{folder}}/{{one}}.ready") for one in range(2)):
    time.sleep(0.01)
if rank == 0:
    os.kill(os.getppid(), {number})
while True:
    signal.pause()
"""


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a module before the package's own that does what is written to it."""
    module = tmp_path / "hydraulis" / "__main__.py"
    module.parent.mkdir()
    module.with_name("__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return module


def test_all_that_end_well_are_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_local_ranks(2, ["--version"]) == 0
    assert capfd.readouterr().out.count("hydraulis") == 2


def test_what_all_refuse_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_local_ranks(2, ["config", "missing.toml"]) == EXIT_REFUSED
    assert capfd.readouterr().err.count("[file_unreadable]") == 1


def test_what_rank_zero_cannot_know_is_said_too(act: Path, capfd: pytest.CaptureFixture[str]) -> None:
    act.write_text(_RANK.format(act="sys.exit('disk 1 is full' if rank else 0)"))
    assert run_local_ranks(2, []) == 1
    assert capfd.readouterr().err == "disk 1 is full\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_reaches_all_and_is_waited_for(act: Path, number: int) -> None:
    act.write_text(_RANK.format(act=_WAIT.format(folder=str(act.parent), number=int(number))))
    with pytest.raises(KeyboardInterrupt):
        run_local_ranks(2, [])
    assert sorted(path.name for path in act.parent.glob("*.ended")) == ["0.ended", "1.ended"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.skipif(sys.platform != "linux", reason="a process hears of its parent's end on Linux alone")
def test_a_rank_ends_with_what_started_it() -> None:
    rank = (
        "import time; from hydraulis.cli.ranks.local_ranks import end_with_parent; end_with_parent()\n"
        "print('listens', flush=True); time.sleep(20); print('outlives')"
    )
    start = (
        "import os, subprocess, sys\n"
        f"environment = os.environ | {{{PARENT!r}: str(os.getpid())}}\n"
        f"subprocess.run([sys.executable, '-c', {rank!r}], env=environment)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", start]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"listens\n"
        parent.kill()
        # The end of the output is the end of the rank.
        assert parent.stdout.read() == b""
