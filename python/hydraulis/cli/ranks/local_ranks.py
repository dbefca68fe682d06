"""Local ranks: a command started as several processes on this machine, as torchrun does on each of many."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, Protocol

from hydraulis.cli.exit import refuse
from hydraulis.cli.ranks.failure import EndedRank, report_failure
from hydraulis.cli.ranks.forked_rank import ForkedRank, InheritedFile, be_a_rank, can_fork
from hydraulis.cli.ranks.report import ERROR_FILE, PARENT
from hydraulis.cli.ranks.store_process import LOOPBACK, served_store
from hydraulis.errors import LOST_RANK, HydraulisError
from hydraulis.runtime.ranks.torchrun import AGENT_STORE, RESTART_COUNT, RUN_FILE

# Time that other ranks get after the first failure: rank 0 may report a shared refusal later than others.
GRACE_S = 5.0
POLL_S = 0.1
_PROGRAM = "hydraulis"
# Environment variable with the number of the open file that keeps the store alive.
_STORE_LIFE = "HYDRAULIS_STORE_LIFE"


def run_local_ranks(
    num_ranks: int, arguments: Sequence[str], grace_s: float = GRACE_S, max_restarts: int = 0
) -> int:
    """Run `hydraulis ARGUMENTS` as several ranks over the loopback interface, and wait for their end.

    A failed rank ends the others. After the loss of a rank all are started again, at most `max_restarts`
    times; an exit code that Hydraulis does not use counts as a loss. Another failure would recur. An
    interrupt or termination is passed on to all ranks; a second interrupt kills them.

    Args:
        num_ranks: Number of ranks.
        arguments: Command line of each rank.
        grace_s: Seconds that the other ranks get after the first failure, before they are killed.
        max_restarts: Most restarts.

    Returns:
        The exit code: 0, or that of ranks that reported their end themselves (see `report_failure`).

    Raises:
        HydraulisError: The cause of a failure.
        KeyboardInterrupt: A signal ended the ranks before they could handle it, or a second interrupt.
    """
    with _requests() as requests, tempfile.TemporaryFile() as run_file:
        for restart in range(max_restarts):
            try:
                environment = _environment(restart, run_file)
                return _run_once(num_ranks, arguments, grace_s, requests, environment)
            except HydraulisError as error:
                if error.code != LOST_RANK or requests:
                    raise
                refuse(_PROGRAM, error)
                again = f"nothing to do: starting the ranks again, restart {restart + 1} of {max_restarts}"
                sys.stderr.write(f"{_PROGRAM}: {again}\n")
                sys.stderr.flush()
        environment = _environment(max_restarts, run_file)
        return _run_once(num_ranks, arguments, grace_s, requests, environment)


def _run_once(
    num_ranks: int,
    arguments: Sequence[str],
    grace_s: float,
    requests: Sequence[int],
    environment: Mapping[str, str],
) -> int:
    """Start the ranks and wait for their end, as `run_local_ranks` does without a restart."""
    with ExitStack() as stack:
        port = stack.enter_context(_reserved_port())
        environment = {**environment, "WORLD_SIZE": str(num_ranks), "MASTER_PORT": str(port)}
        # Rank 0 writes to this process's standard error; that of the others is printed after a failure.
        outputs = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_ranks))]
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_ranks)]
        ranks: list[_RankProcess] = []
        start: _Starter = _start
        if can_fork(lambda: bool(requests)):
            start = partial(_fork, stack.enter_context(served_store(port)))
            environment = {**environment, AGENT_STORE: "True"}
        try:
            for rank, files in enumerate(zip(outputs, errors, strict=True)):
                ranks.append(start(rank, arguments, environment, files))
            failed = _wait(ranks, requests, grace_s)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if not failed:
            return 0
        ended = [
            EndedRank(code, output, error)
            for process, output, error in zip(ranks, outputs, errors, strict=True)
            if (code := process.poll()) is not None
        ]
        return report_failure(ended, failed, is_stopped=bool(requests))


def _environment(restart: int, run_file: IO[bytes]) -> Mapping[str, str]:
    """Return the variables that all ranks of a start share."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {
        PARENT: str(os.getpid()),
        RUN_FILE: str(run_file.fileno()),
        RESTART_COUNT: str(restart),
        "MASTER_ADDR": LOOPBACK,
        # Ranks share the cores: further threads would only wait for one another.
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
    }


class _RankProcess(Protocol):
    """The process of a rank, as its launcher uses it."""

    def poll(self) -> int | None: ...

    def wait(self) -> object: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...


_Files = tuple[IO[bytes] | None, IO[bytes]]
"""The files for a rank's standard error, None for that of this process, and for its error."""
_Starter = Callable[[int, Sequence[str], Mapping[str, str], _Files], _RankProcess]


def _fork(
    life: int, rank: int, arguments: Sequence[str], environment: Mapping[str, str], files: _Files
) -> _RankProcess:
    """Fork a rank from the server that has loaded torch; it keeps the file `life` open."""
    output, error = files
    inherited = {
        _STORE_LIFE: InheritedFile(life),
        ERROR_FILE: InheritedFile(error.fileno()),
        RUN_FILE: InheritedFile(int(environment[RUN_FILE])),
    }
    errors = None if output is None else InheritedFile(output.fileno())
    return ForkedRank(be_a_rank, list(arguments), _of_rank(rank, environment), inherited, errors)


def _start(
    rank: int, arguments: Sequence[str], environment: Mapping[str, str], files: _Files
) -> _RankProcess:
    """Start a rank in an interpreter of its own."""
    output, error = files
    of_rank = {**_of_rank(rank, environment), ERROR_FILE: str(error.fileno())}
    command = [sys.executable, "-m", "hydraulis", *arguments]
    # A rank in a process group of its own gets a terminal's Ctrl-C from this process alone.
    return subprocess.Popen(
        command,
        env=os.environ | of_rank,
        stderr=output,
        pass_fds=[error.fileno(), int(environment[RUN_FILE])],
        process_group=0,
    )


def _of_rank(rank: int, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Add the variables of a rank to those that all ranks share."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"]}
    return {**environment, **own}


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


def _wait(ranks: Sequence[_RankProcess], requests: Sequence[int], grace_s: float) -> Sequence[int]:
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


def _pass_on(ranks: Sequence[_RankProcess], requests: Sequence[int]) -> None:
    if signal.SIGINT in requests:
        sys.stderr.write("\nhydraulis: stopping; finished work is saved first; Ctrl-C again stops at once\n")
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
        holder.bind((LOOPBACK, 0))
        port: int = holder.getsockname()[1]
        yield port
