"""Forked ranks: their ends, the files that they inherit, and the errors that they pass to their launcher."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import ranks
from helpers import refused
from hydraulis.cli.exit import EXIT_UNKNOWN
from hydraulis.cli.ranks import forked_rank
from hydraulis.cli.ranks.forked_rank import ForkedRank, InheritedFile, can_fork
from hydraulis.cli.ranks.local_ranks import run_local_ranks

# Loads the modules of the server, and prints the uses of CUDA and the number of threads.
_LOAD = """
import os, torch
uses = []
for module, name in ((torch.cuda, "is_available"), (torch.cuda, "_lazy_init"), (torch.cuda, "device_count"),
                     (torch._C, "_cuda_getDeviceCount")):
    setattr(module, name, lambda *_, name=name: uses.append(name))
import hydraulis.cli.ranks.fork_server
print(uses, len(os.listdir("/proc/self/task")))
"""

# Kills the server, whose rank ends only after that: by itself, or by the signal that its launcher sends.
_ORPHAN = """
import multiprocessing, os, signal, sys, time
from hydraulis.cli.ranks import forked_rank
from hydraulis.cli.ranks.forked_rank import ForkedRank

context = multiprocessing.get_context("forkserver")
forked_rank._context = lambda: context
rank = ForkedRank(time.sleep, float(sys.argv[1]))
os.kill(int(open(f"/proc/{rank._process.pid}/stat").read().rpartition(")")[2].split()[1]), signal.SIGKILL)
while rank._process.exitcode is None:
    time.sleep(0.01)
print(rank.poll())
if sys.argv[2] == "kill":
    rank.kill()
rank.wait()
print(rank.poll(), os.path.exists(f"/proc/{rank._process.pid}/exe"))
"""

# Kills the server, and tells what a rank of the next one has loaded and inherited.
_RESTARTED = """
import os, signal, sys, tempfile
from multiprocessing import forkserver
from hydraulis.cli.ranks.forked_rank import ForkedRank, InheritedFile, can_fork

assert can_fork(lambda: False)
server = forkserver._forkserver._forkserver_pid
os.kill(server, signal.SIGKILL)
os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
assert can_fork(lambda: False)
with tempfile.TemporaryFile() as file:
    told = "os.write(number, str(('torch' in sys.modules, os.environ.get('OMP_NUM_THREADS'))).encode())"
    rank = ForkedRank(exec, "import os, sys\\n" + told, {"number": InheritedFile(file.fileno())})
    rank.wait()
    file.seek(0)
    print(file.read().decode())
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux")


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the tests' fork server."""
    monkeypatch.setattr(forked_rank, "_context", ranks._context)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_rank(number: signal.Signals) -> None:
    rank = ForkedRank(time.sleep, 60)
    assert rank.poll() is None
    end = rank.terminate if number == signal.SIGTERM else rank.kill
    end()
    rank.wait()
    assert rank.poll() == -number


def test_a_rank_has_its_exit_code() -> None:
    rank = ForkedRank(sys.exit, 3)
    rank.wait()
    assert rank.poll() == 3


@pytest.mark.parametrize(("seconds", "end"), [("3", "sleep"), ("60", "kill")])
def test_a_rank_is_followed_to_its_end_after_that_of_its_server(seconds: str, end: str) -> None:
    words = [sys.executable, "-c", _ORPHAN, seconds, end]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    begun = time.monotonic()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", f"{EXIT_UNKNOWN} False"], done.stderr
    assert time.monotonic() - begun < 50


def test_a_new_server_has_loaded_what_the_killed_one_had() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("OMP_NUM_THREADS", None)
    words = [sys.executable, "-c", _RESTARTED]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "(True, '1')\n", done.stderr


class EndedServer:
    """The context of a server that has ended: its processes cannot start."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def Process(self, **_: object) -> "EndedServer":  # noqa: N802 - as in multiprocessing
        return self

    def start(self) -> None:
        raise self._error


of_an_ended_server = pytest.mark.parametrize("error", [EOFError, ConnectionRefusedError])


@of_an_ended_server
def test_a_server_that_ends_while_a_rank_starts_is_a_loss(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_rank, "_context", lambda: EndedServer(error))
    with refused("lost_rank", "the process that forks ranks ended"):
        ForkedRank(time.sleep, 60)


def test_a_rank_writes_into_a_file_of_its_launcher() -> None:
    with tempfile.TemporaryFile() as file:
        ForkedRank(os.write, InheritedFile(file.fileno()), b"disk 1 is full").wait()
        file.seek(0)
        assert file.read() == b"disk 1 is full"


def test_the_error_of_forked_ranks_is_raised_once(capfd: pytest.CaptureFixture[str]) -> None:
    with refused("file_unreadable", "missing.toml"):
        run_local_ranks(2, ["config", "missing.toml"])
    assert capfd.readouterr().err == ""


def test_an_interrupt_ends_the_wait_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading:
        def Process(self, **_: object) -> "Loading":  # noqa: N802 - as in multiprocessing
            return self

        def start(self) -> None:
            time.sleep(60)

    monkeypatch.setattr(forked_rank, "_context", Loading)
    with pytest.raises(KeyboardInterrupt):
        can_fork(lambda: True)


@of_an_ended_server
def test_a_server_that_cannot_load_leaves_the_start_to_interpreters(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_rank, "_context", lambda: EndedServer(error))
    assert not can_fork(lambda: False)


def test_the_modules_of_the_server_start_neither_cuda_nor_threads() -> None:
    """A process that has started either cannot be forked."""
    environment = os.environ | forked_rank._OF_SERVER | {"PYTHONPATH": os.pathsep.join(sys.path)}
    del environment[forked_rank.SERVER]
    done = subprocess.run([sys.executable, "-c", _LOAD], env=environment, capture_output=True, check=True)
    assert done.stdout == b"[] 1\n"
