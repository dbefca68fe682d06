"""Local ranks: a command started as several processes on this machine, as torchrun does on each of many."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.ranks.report import PARENT

# Time that other ranks get after the first failure: rank 0 may report a shared refusal later than others.
GRACE_S = 5.0
POLL_S = 0.1
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def run_local_ranks(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run `hydraulis ARGUMENTS` as several ranks over the loopback interface, and wait for their end.

    A failed rank ends the others. An interrupt or termination is passed on to all ranks. An error that all
    ranks share is printed by rank 0 alone.

    Args:
        num_ranks: Number of ranks.
        arguments: Command line of each rank.

    Returns:
        The exit code of the first rank that failed; 0 if none did.

    Raises:
        KeyboardInterrupt: The command was interrupted or terminated, and a rank ended with its work undone.
    """
    port = _free_port()
    with ExitStack() as stack, _requests() as requests:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_ranks)]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank, errors in enumerate([None, *outputs]):
                process = _start(rank, num_ranks, port, arguments, errors)
                ranks.append(process)
            first = _wait(ranks, requests)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if first is None:
            return 0
        if requests:
            raise KeyboardInterrupt
        if first > 0 and ranks[0].returncode != EXIT_REFUSED:
            _print_output(outputs[first - 1])
        return ranks[first].returncode


def end_with_parent() -> None:
    """Have a rank of `run_local_ranks` terminated when its parent is killed, on Linux.

    In other processes this does nothing.
    """
    parent = os.environ.get(PARENT)
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            # The parent was killed before the call.
            os.kill(os.getpid(), signal.SIGTERM)


def _start(
    rank: int, num_ranks: int, port: int, arguments: Sequence[str], errors: IO[bytes] | None
) -> "subprocess.Popen[bytes]":
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    environment = os.environ | {
        PARENT: str(os.getpid()),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Ranks share the cores: further threads would only wait for one another.
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
    }
    # A rank in a process group of its own gets a terminal's Ctrl-C from this process alone.
    command = [sys.executable, "-m", "hydraulis", *arguments]
    return subprocess.Popen(command, env=environment, stderr=errors, process_group=0)


@contextmanager
def _requests() -> Iterator[list[int]]:
    """Collect the numbers of received signals that would end the process."""
    requests: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # Signals that are ignored, as under nohup, stay ignored.
    handled = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {
        number: signal.signal(number, lambda number, _: requests.append(number)) for number in handled
    }
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(ranks: "Sequence[subprocess.Popen[bytes]]", requests: Sequence[int]) -> int | None:
    """Wait for all ranks, or for `GRACE_S` after the first failure: others may wait for the failed rank.

    Returns:
        The rank that failed first; None if none did.
    """
    first, deadline, passed_on = None, float("inf"), 0
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        if first is None:
            first = _failed(ranks)
            deadline = deadline if first is None else time.monotonic() + GRACE_S
        if len(requests) > passed_on:
            passed_on = len(requests)
            for rank in ranks:
                rank.terminate()
        time.sleep(POLL_S)
    return _failed(ranks) if first is None else first


def _failed(ranks: "Sequence[subprocess.Popen[bytes]]") -> int | None:
    return next((rank for rank, process in enumerate(ranks) if process.poll()), None)


def _print_output(output: IO[bytes]) -> None:
    """Print a rank's collected standard error."""
    output.seek(0)
    sys.stderr.flush()
    shutil.copyfileobj(output, sys.stderr.buffer)
    sys.stderr.flush()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
