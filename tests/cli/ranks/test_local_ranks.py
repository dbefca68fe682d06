"""Local ranks: they end after the first failure and on request, and one of them reports errors."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import hydraulis
from helpers import refused
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.ranks.local_ranks import _reserved_port, run_local_ranks
from hydraulis.cli.ranks.report import PARENT

_RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
{act}
"""

# Both ranks are ready before rank 0 signals the command.
_READY = """
folder = {folder!r}
{handle}
open(f"{{folder}}/{{rank}}.ready", "w").close()
while not all(os.path.exists(f"{{folder}}/{{one}}.ready") for one in range(2)):
    time.sleep(0.01)
if rank == 0:
    os.kill(os.getppid(), {number})
while True:
    signal.pause()
"""
# Each rank takes a moment to exit.
_LEAVE = """
def leave(*_):
    time.sleep(0.2)
    open(f"{folder}/{rank}.ended", "w").close()
    sys.exit(130)
signal.signal(signal.SIGTERM, leave)
"""
# The ranks stay, and rank 0 asks again.
_STAY = """
signal.signal(signal.SIGTERM, lambda *_: rank or os.kill(os.getppid(), signal.SIGINT))
"""
# Rank 1 reports an error, and rank 0 the loss of rank 1, once it has ended.
_REFUSE = """
from hydraulis.cli.ranks.report import report_as_rank
from hydraulis.errors import HydraulisError
if rank == 0:
    while not os.path.exists({folder!r} + "/1.ended"):
        time.sleep(0.01)
error = HydraulisError("disk 1 is full", code="file_unwritable")
lost = HydraulisError("another rank ended", code="lost_rank")
code = report_as_rank("hydraulis", error if rank else lost)
open({folder!r} + f"/{{rank}}.ended", "w").close()
sys.exit(code)
"""
# Rank 1 is killed, and rank 0 reports the loss.
_LOSE = """
if rank:
    os.kill(os.getpid(), signal.SIGKILL)
from hydraulis.cli.ranks.report import report_as_rank
from hydraulis.errors import HydraulisError
sys.exit(report_as_rank("hydraulis", HydraulisError("start again", code="lost_rank")))
"""


# Each start passes its number on to the next one; rank 1 is killed in the first {kills} starts.
_RESTART = """
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
file = int(os.environ["HYDRAULIS_RUN_FILE"])
if rank == 0:
    seen = os.pread(file, 100, 0).decode()
    os.pwrite(file, (seen + str(start)).encode(), 0)
    open({folder!r} + "/seen", "w").write(seen + str(start))
elif start < {kills}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each rank in an interpreter of its own, as on systems other than Linux."""
    monkeypatch.setattr("hydraulis.cli.ranks.local_ranks.can_fork", lambda _is_stopped: False)


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


def test_a_shared_error_is_raised_once(capfd: pytest.CaptureFixture[str]) -> None:
    with refused("file_unreadable", "missing.toml"):
        run_local_ranks(2, ["config", "missing.toml"])
    assert capfd.readouterr().err == ""


def test_an_error_of_another_rank_is_printed(act: Path, capfd: pytest.CaptureFixture[str]) -> None:
    act.write_text(_RANK.format(act="sys.exit('disk 1 is full' if rank else 0)"))
    assert run_local_ranks(2, []) == 1
    assert capfd.readouterr().err == "disk 1 is full\n"


def test_the_cause_is_raised_and_not_the_loss_that_it_causes(
    act: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_the_package(act, monkeypatch)
    act.write_text(_RANK.format(act=_REFUSE.format(folder=str(act.parent))))
    with refused("file_unwritable", "disk 1 is full"):
        run_local_ranks(2, [], grace_s=60)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_that_ends_a_rank_is_named(act: Path, rank: int) -> None:
    kill = f"rank == {rank} and os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)"
    act.write_text(_RANK.format(act=kill))
    with refused("lost_rank", f"SIGKILL ended rank {rank}: "):
        run_local_ranks(2, [], grace_s=0.1)


def test_the_loss_of_a_rank_is_reported_with_its_signal(act: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_the_package(act, monkeypatch)
    act.write_text(_RANK.format(act=_LOSE))
    with refused("lost_rank", "SIGKILL", "rank 1"):
        run_local_ranks(2, [], grace_s=60)


def test_lost_ranks_are_started_again(act: Path, capfd: pytest.CaptureFixture[str]) -> None:
    act.write_text(_RANK.format(act=_RESTART.format(folder=str(act.parent), kills=2)))
    assert run_local_ranks(2, [], grace_s=60, max_restarts=3) == 0
    assert (act.parent / "seen").read_text() == "012"
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "[lost_rank]" not in line] == [
        f"hydraulis: nothing to do: starting the ranks again, restart {number} of 3" for number in (1, 2)
    ]


def test_there_are_no_more_restarts_than_allowed(act: Path) -> None:
    act.write_text(_RANK.format(act=_RESTART.format(folder=str(act.parent), kills=9)))
    with refused("lost_rank", "SIGKILL ended rank 1: "):
        run_local_ranks(2, [], grace_s=60, max_restarts=1)
    assert (act.parent / "seen").read_text() == "01"


@pytest.mark.parametrize("end", ["sys.exit('disk 1 is full')", "os.kill(os.getppid(), signal.SIGTERM)"])
def test_another_end_leads_to_no_restart(act: Path, end: str) -> None:
    act.write_text(_RANK.format(act=f"open({str(act.parent)!r} + '/starts', 'a').write('x')\n{end}\n"))
    if "kill" in end:
        # The launcher passes the signal on, which ends its ranks.
        act.write_text(act.read_text() + "time.sleep(60)\n")
        with pytest.raises(KeyboardInterrupt):
            run_local_ranks(1, [], max_restarts=1)
    else:
        assert run_local_ranks(1, [], max_restarts=1) == 1
    assert (act.parent / "starts").read_text() == "x"


def use_the_package(act: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module of a rank import the rest of the package."""
    act.with_name("__init__.py").write_text(f"__path__.append({hydraulis.__path__[0]!r})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(act.parents[1]), *sys.path)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_to_all_ranks(
    act: Path, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    act.write_text(_RANK.format(act=_READY.format(folder=str(act.parent), handle=_LEAVE, number=int(number))))
    assert run_local_ranks(2, []) == EXIT_INTERRUPTED
    assert sorted(path.name for path in act.parent.glob("*.ended")) == ["0.ended", "1.ended"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert ("Ctrl-C again" in capfd.readouterr().err) == (number == signal.SIGINT)


def test_a_signal_before_ranks_handle_it_interrupts_the_command(act: Path) -> None:
    number = int(signal.SIGTERM)
    act.write_text(_RANK.format(act=_READY.format(folder=str(act.parent), handle="", number=number)))
    with pytest.raises(KeyboardInterrupt):
        run_local_ranks(2, [])


def test_a_second_interrupt_ends_the_ranks_at_once(act: Path) -> None:
    number = int(signal.SIGINT)
    act.write_text(_RANK.format(act=_READY.format(folder=str(act.parent), handle=_STAY, number=number)))
    with pytest.raises(KeyboardInterrupt):
        run_local_ranks(2, [], grace_s=60)


def test_no_other_socket_gets_the_port_of_the_store() -> None:
    with _reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        # The store itself does.
        TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a parent's end")
def test_a_rank_ends_with_its_parent() -> None:
    rank = (
        "import time; from hydraulis.cli.ranks.report import end_with_parent; end_with_parent()\n"
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
