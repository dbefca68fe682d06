"""Local ranks: they end after the first failure and on request, and one of them reports errors."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.ranks.local_ranks import run_local_ranks
from hydraulis.cli.ranks.report import PARENT

_RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
{act}
"""

# Both ranks are ready before rank 0 signals the command; each takes a moment to exit.
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
    """Put a module in front of the package's own, for the test to write."""
    module = tmp_path / "hydraulis" / "__main__.py"
    module.parent.mkdir()
    module.with_name("__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return module


def test_successful_ranks_are_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_local_ranks(2, ["--version"]) == 0
    assert capfd.readouterr().out.count("hydraulis") == 2


def test_a_shared_error_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_local_ranks(2, ["config", "missing.toml"]) == EXIT_REFUSED
    assert capfd.readouterr().err.count("[file_unreadable]") == 1


def test_an_error_of_another_rank_is_printed(act: Path, capfd: pytest.CaptureFixture[str]) -> None:
    act.write_text(_RANK.format(act="sys.exit('disk 1 is full' if rank else 0)"))
    assert run_local_ranks(2, []) == 1
    assert capfd.readouterr().err == "disk 1 is full\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_to_all_ranks(act: Path, number: int) -> None:
    act.write_text(_RANK.format(act=_WAIT.format(folder=str(act.parent), number=int(number))))
    with pytest.raises(KeyboardInterrupt):
        run_local_ranks(2, [])
    assert sorted(path.name for path in act.parent.glob("*.ended")) == ["0.ended", "1.ended"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a parent's end")
def test_a_rank_ends_with_its_parent() -> None:
    rank = (
        "import time; from hydraulis.cli.ranks.local_ranks import end_with_parent; end_with_parent()\n"
        "print('ready', flush=True); time.sleep(20); print('outlives')"
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
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        # The end of the output is the end of the rank.
        assert parent.stdout.read() == b""
