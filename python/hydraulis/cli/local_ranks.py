"""Starts a command as several ranks on this machine, as torchrun would on each of many."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

# Ranks that are refused alike end one after the other; rank 0 has yet to say why.
GRACE_S = 5.0
POLL_S = 0.1


def run_local_ranks(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run `hydraulis ARGUMENTS` as that many ranks that talk over the loopback interface, and wait for all.

    A rank that fails ends the others, and an interrupt reaches all of them.

    Args:
        num_ranks: how many.
        arguments: of the command, the same for each.

    Returns:
        The exit code of the first rank that failed; 0 if none did.
    """
    port = _free_port()
    ranks = [_start(rank, num_ranks, port, arguments) for rank in range(num_ranks)]
    try:
        return _wait(ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _start(rank: int, num_ranks: int, port: int, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    environment = os.environ | {
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
    return subprocess.Popen([sys.executable, "-m", "hydraulis", *arguments], env=environment)


def _wait(ranks: "Sequence[subprocess.Popen[bytes]]") -> int:
    """Wait for all ranks, but not long once one has failed: the others may wait for it."""
    deadline = None
    while any(rank.poll() is None for rank in ranks):
        failed = any(rank.poll() for rank in ranks)
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            break
        try:
            time.sleep(POLL_S)
        except KeyboardInterrupt:
            # A terminal has interrupted the ranks too, but kill(1) has not; to be told twice changes nothing.
            for rank in ranks:
                rank.send_signal(signal.SIGINT)
    codes = [rank.poll() for rank in ranks]
    return next((code for code in codes if code), 0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
