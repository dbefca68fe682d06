"""Local ranks that are forked from a server process, which has loaded torch.

Loading torch takes seconds of CPU time. Ranks that do it themselves share the cores of their node, and do it
again after each loss of a rank. The server does it once. Then a rank starts in a tenth of a second, and
shares the memory of all that is loaded. The server ends with the launcher; its ranks are terminated then. If
the server alone is killed, its ranks receive SIGTERM, end as after any request to stop, and count as lost.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, reduction
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from hydraulis.cli.exit import EXIT_UNKNOWN
from hydraulis.cli.ranks.report import PARENT
from hydraulis.cli.start import command, hide_torch_warnings
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.liveness.bounded import Stopped, call_within

SERVER = "HYDRAULIS_FORK_SERVER"
"""Environment variable that is set in the server alone."""
HELD_BACK = (signal.SIGTERM, signal.SIGHUP)
"""Signals that the server leaves pending, so that it lives as long as the launcher; ranks take them again."""
_MODULE = "hydraulis.cli.ranks.fork_server"
# torch reads these when it is loaded. Ranks share the cores, so further threads would only wait for one
# another.
_OF_SERVER = {"OMP_NUM_THREADS": "1", SERVER: "1"}
_STDERR = 2


class InheritedFile:
    """An open file of the launcher, as an argument of a rank: the rank receives the number that it has there.

    Args:
        number: Number of the file in the launcher.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        """Send the file along with the arguments."""
        return _received, (reduction.DupFd(self._number),)


class ForkedRank:
    """A forked process with the methods of `Popen` that the launcher uses.

    The server tells the exit code. After the server's own end the code is `EXIT_UNKNOWN`, and the process is
    followed by a descriptor of its own, where kernel (Linux 5.3) and interpreter have them; elsewhere it
    counts as ended.

    Args:
        function: Function of the process, importable by name.
        arguments: Arguments of the function.

    Raises:
        HydraulisError: The server ended meanwhile (code `lost_rank`).
    """

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._process = _context().Process(target=function, args=arguments)
        try:
            self._process.start()
        except (EOFError, ConnectionError) as error:
            message = "the process that forks ranks ended while it started one; start again"
            raise HydraulisError(message, code="lost_rank") from error
        self._descriptor: int | None = None
        # An interpreter or a kernel without them, or a process that has ended already.
        with suppress(OSError, AttributeError):
            self._descriptor = os.pidfd_open(self._process.ident or 0)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        code = self._process.exitcode
        runs = code == EXIT_UNKNOWN and self._descriptor is not None and not wait([self._descriptor], 0)
        return None if runs else code

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._process.join()
        if self._descriptor is not None:
            if self._process.exitcode == EXIT_UNKNOWN:
                wait([self._descriptor])
            os.close(self._descriptor)
            self._descriptor = None

    def kill(self) -> None:
        """Send SIGKILL to a process that runs."""
        self._signal(signal.SIGKILL, self._process.kill)

    def terminate(self) -> None:
        """Send SIGTERM to a process that runs."""
        self._signal(signal.SIGTERM, self._process.terminate)

    def _signal(self, number: signal.Signals, without_descriptor: Callable[[], None]) -> None:
        """Send a signal; `multiprocessing` takes a process whose server has ended for ended too."""
        if self._descriptor is None:
            without_descriptor()
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)


def can_fork(is_stopped: Callable[[], bool]) -> bool:
    """Return whether ranks can be forked, after the server has loaded torch.

    Args:
        is_stopped: Function that returns whether to stop waiting.

    Raises:
        KeyboardInterrupt: `is_stopped` returned true.
    """
    if sys.platform != "linux":
        return False
    first = _context().Process(target=int)
    try:
        call_within(float("inf"), first.start, is_stopped)
    except Stopped as stopped:
        raise KeyboardInterrupt from stopped
    except (EOFError, ConnectionError):
        # The server could not load a module, or was killed. An interpreter of its own reports the reason.
        return False
    first.join()
    return True


def be_a_rank(
    arguments: Sequence[str], environment: Mapping[str, str], files: Mapping[str, int], output: int | None
) -> None:
    """Run `hydraulis ARGUMENTS` as one rank, in a process that the server has forked.

    Args:
        arguments: Command line.
        environment: Environment variables of the rank.
        files: Numbers of open files, by the environment variable that names each.
        output: Number of the file for standard error; None for that of the launcher.
    """
    numbers = {name: str(number) for name, number in files.items()}
    os.environ |= {**environment, **numbers, PARENT: str(os.getppid())}
    sys.argv = ["hydraulis", *arguments]
    # A rank in a process group of its own gets a terminal's Ctrl-C from its launcher alone.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    with suppress(OSError):
        # The name that ps and top show.
        Path("/proc/self/comm").write_text(f"hydraulis-{environment['RANK']}")
    if output is not None:
        os.dup2(output, _STDERR)
    command()


def _context() -> ForkServerContext:
    """Start the server, unless it runs; it ends with the calling thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_MODULE])
    before = dict(os.environ)
    try:
        hide_torch_warnings()
        os.environ |= {**_OF_SERVER, PARENT: str(os.getpid())}
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= before
    return context


def _received(file: Any) -> int:
    number: int = file.detach()
    return number
