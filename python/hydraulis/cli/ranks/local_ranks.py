"""Local ranks: a command started as several processes on this machine, as torchrun does on each of many."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from hydraulis.cli.ranks.failure import EndedRank, report_failure
from hydraulis.cli.ranks.report import ERROR_FILE, PARENT

# Time that other ranks get after the first failure: rank 0 may report a shared refusal later than others.
GRACE_S = 5.0
POLL_S = 0.1
_LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def run_local_ranks(num_ranks: int, arguments: Sequence[str], grace_s: float = GRACE_S) -> int:
    """Run `hydraulis ARGUMENTS` as several ranks over the loopback interface, and wait for their end.

    A failed rank ends the others. An interrupt or termination is passed on to all ranks; a second interrupt
    kills them.

    Args:
        num_ranks: Number of ranks.
        arguments: Command line of each rank.
        grace_s: Seconds that the other ranks get after the first failure, before they are killed.

    Returns:
        The exit code: 0, or that of ranks that reported their end themselves (see `report_failure`).

    Raises:
        HydraulisError: The cause of a failure.
        KeyboardInterrupt: A signal ended the ranks before they could handle it, or a second interrupt.
    """
    with ExitStack() as stack, _requests() as requests:
        port = stack.enter_context(_reserved_port())
        # Rank 0 writes to this process's standard error; that of the others is printed after a failure.
        outputs = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_ranks))]
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_ranks)]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank, (output, error) in enumerate(zip(outputs, errors, strict=True)):
                ranks.append(_start(rank, num_ranks, port, arguments, (output, error)))
            failed = _wait(ranks, requests, grace_s)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if not failed:
            return 0
        ended = [
            EndedRank(process.returncode, output, error)
            for process, output, error in zip(ranks, outputs, errors, strict=True)
        ]
        return report_failure(ended, failed, is_stopped=bool(requests))


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
    rank: int,
    num_ranks: int,
    port: int,
    arguments: Sequence[str],
    files: tuple[IO[bytes] | None, IO[bytes]],
) -> "subprocess.Popen[bytes]":
    output, error = files
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    environment = os.environ | {
        PARENT: str(os.getpid()),
        ERROR_FILE: str(error.fileno()),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
        # Ranks share the cores: further threads would only wait for one another.
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
    }
    command = [sys.executable, "-m", "hydraulis", *arguments]
    # A rank in a process group of its own gets a terminal's Ctrl-C from this process alone.
    return subprocess.Popen(
        command, env=environment, stderr=output, pass_fds=[error.fileno()], process_group=0
    )


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


def _wait(
    ranks: "Sequence[subprocess.Popen[bytes]]", requests: Sequence[int], grace_s: float
) -> Sequence[int]:
    """Wait for all ranks, or for `grace_s` after the first failure: others may wait for the failed rank.

    Returns:
        The ranks that failed, in the order of their ends.

    Raises:
        KeyboardInterrupt: A second interrupt arrived.
    """
    failed: list[int] = []
    deadline, passed_on = float("inf"), 0
    while True:
        codes = [rank.poll() for rank in ranks]
        failed += [rank for rank, code in enumerate(codes) if code and rank not in failed]
        if failed:
            deadline = min(deadline, time.monotonic() + grace_s)
        if None not in codes or time.monotonic() >= deadline:
            return failed
        if requests.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        if len(requests) > passed_on:
            _pass_on(ranks, requests[passed_on:])
            passed_on = len(requests)
        time.sleep(POLL_S)


def _pass_on(ranks: "Sequence[subprocess.Popen[bytes]]", requests: Sequence[int]) -> None:
    if signal.SIGINT in requests:
        sys.stderr.write("\nhydraulis: stopping once the work is saved; Ctrl-C again stops at once\n")
        sys.stderr.flush()
    for rank in ranks:
        rank.terminate()


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Yield a port of the loopback interface for rank 0's store, which takes seconds to open.

    Until then the kernel gives the port to no other socket, because one is bound to it. The store can be
    bound to it too, since both set SO_REUSEADDR and this socket does not listen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        port: int = holder.getsockname()[1]
        yield port
