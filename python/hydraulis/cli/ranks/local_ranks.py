"""Starts a command as several ranks on this machine, as torchrun would on each of many."""

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
from hydraulis.cli.ranks.rank import PARENT

# Ranks that are refused alike end one after the other; rank 0 has yet to say why.
GRACE_S = 5.0
POLL_S = 0.1
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def run_local_ranks(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run `hydraulis ARGUMENTS` as that many ranks that talk over the loopback interface, and wait for all.

    A rank that fails ends the others. An interrupt or termination asks all of them to end, and is waited for.
    What ranks refuse alike is said once, by rank 0.

    Args:
        num_ranks: how many.
        arguments: of the command, the same for each.

    Returns:
        The exit code of the first rank that failed; 0 if none did.

    Raises:
        KeyboardInterrupt: it was interrupted or terminated, and a rank ended before its work was done.
    """
    port = _free_port()
    with ExitStack() as stack, _requests() as requests:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_ranks)]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank, errors in enumerate([None, *said]):
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
            _repeat(said[first - 1])
        return ranks[first].returncode


def end_with_parent() -> None:
    """Let a rank of `run_local_ranks` be terminated if what started it is killed; on Linux alone.

    Does nothing in any other process.
    """
    parent = os.environ.get(PARENT)
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            # It was killed before that.
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
        # Ranks share the cores: more threads than one each would wait for one another.
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
    }
    # In a group of its own a rank hears of a terminal's Ctrl-C from here alone, in one way at any time.
    command = [sys.executable, "-m", "hydraulis", *arguments]
    return subprocess.Popen(command, env=environment, stderr=errors, process_group=0)


@contextmanager
def _requests() -> Iterator[list[int]]:
    """Collect the numbers of the signals that ask to end, instead of ending."""
    requests: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What was to be ignored, as under nohup, still is.
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda number, _: requests.append(number)) for number in heard}
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(ranks: "Sequence[subprocess.Popen[bytes]]", requests: Sequence[int]) -> int | None:
    """Wait for all ranks, but not long once one has failed: the others may wait for it.

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


def _repeat(said: IO[bytes]) -> None:
    """Say what a rank has said, which rank 0 has not."""
    said.seek(0)
    sys.stderr.flush()
    shutil.copyfileobj(said, sys.stderr.buffer)
    sys.stderr.flush()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
