"""Runs a function on several gloo ranks, each in its own process, and gives back what they returned.

    from parallel.tensor_workers import loss_and_gradients
    results = run_ranks(4, loss_and_gradients, config, lengths, num_stages)

The function runs in a process that has already joined a gloo group of all ranks on the loopback interface,
with one torch thread and with warnings as errors; it asks `torch.distributed` for its rank. It must be
importable by name, so it lives in a module `*_workers.py` and not in the test. Arguments and results must be
picklable; tensors are copied.

A rank that raises, dies or overruns the timeout fails the call with its number and traceback. No rank
outlives the call. A rank that is done, or has failed, waits for the others: so none of them sees a closed
connection before the parent has seen the cause.

Processes come from a fork server that has imported torch and hydraulis once (ranks_server.py): 0.3 s for 8
ranks on 2 cores, after a first call of about 4 s. Forking the test process itself would copy locks that its
threads hold.
"""

import functools
import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hydraulis.config.kinds import DeviceKind
from hydraulis.runtime.ranks.device import backend_of, choose_device, prepare_device

TIMEOUT_SECONDS = 60.0


class RankError(Exception):
    """A rank raised, died, or overran the timeout."""


class _Place(NamedTuple):
    rank: int
    world_size: int
    store: Path
    timeout: timedelta
    device: DeviceKind
    ranks_per_node: int


class _Child(NamedTuple):
    process: BaseProcess
    connection: "Connection[Any, Any]"


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_seconds: float = TIMEOUT_SECONDS,
    device: DeviceKind = "cpu",
    ranks_per_node: int | None = None,
) -> list[Any]:
    """Call `function(*args)` on every rank.

    Args:
        world_size: number of ranks.
        function: importable by name.
        args: the same for every rank.
        timeout_seconds: for the whole call, and for each collective.
        device: `cpu`, or `cuda` for a device for each rank, with NCCL between them.
        ranks_per_node: as torchrun would say it, of nodes that are pretended; all ranks if left out.

    Returns:
        The results, by rank.

    Raises:
        RankError: a rank raised, died, or was not done in time.
    """
    # Pickled here, because the processes' own pickler would move tensors through shared memory.
    call = pickle.dumps((function, args))
    deadline = time.monotonic() + timeout_seconds
    children: list[_Child] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(world_size):
                timeout = timedelta(seconds=timeout_seconds)
                store = Path(folder) / "store"
                place = _Place(rank, world_size, store, timeout, device, ranks_per_node or world_size)
                children.append(_start(place, call))
            results = _collect(children, deadline)
            _dismiss(children, deadline)
        finally:
            _stop(children)
    return results


@functools.cache
def _context() -> ForkServerContext:
    """Start the fork server, which imports what ranks need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ranks_server"])
    # A new interpreter, which would leave out in silence what it does not find.
    found = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), found)))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if found is not None:
            os.environ["PYTHONPATH"] = found
    return context


def _start(place: _Place, call: bytes) -> _Child:
    context = _context()
    connection, remote = context.Pipe()
    process = context.Process(target=_run_rank, args=(place, call, remote))
    process.start()
    # Else the pipe would stay open here when the rank dies.
    remote.close()
    return _Child(process, connection)


def _collect(children: Sequence[_Child], deadline: float) -> list[Any]:
    waiting = {rank: child.connection for rank, child in enumerate(children)}
    results: dict[int, Any] = {}
    while waiting:
        ready = wait(waiting.values(), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            message = f"ranks {list(waiting)} were not done in time"
            raise RankError(message)
        for rank in [rank for rank, connection in waiting.items() if connection in ready]:
            results[rank] = _result(rank, waiting.pop(rank))
    return [results[rank] for rank in range(len(children))]


def _result(rank: int, connection: "Connection[Any, Any]") -> Any:
    try:
        succeeded, value = pickle.loads(connection.recv_bytes())
    except EOFError:
        message = f"rank {rank} died without a word"
        raise RankError(message) from None
    if not succeeded:
        message = f"rank {rank} failed:\n{value}"
        raise RankError(message)
    return value


def _dismiss(children: Sequence[_Child], deadline: float) -> None:
    for child in children:
        child.connection.send(None)
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))


def _stop(children: Sequence[_Child]) -> None:
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join()
        child.process.close()
        child.connection.close()


def _run_rank(place: _Place, call: bytes, connection: "Connection[Any, Any]") -> None:
    """Be one rank: run, report, and stay until the parent says so."""
    warnings.simplefilter("error")
    try:
        _join(place)
        function, args = pickle.loads(call)
        report = pickle.dumps((True, function(*args)))
    except BaseException:
        report = pickle.dumps((False, traceback.format_exc()))
    connection.send_bytes(report)
    connection.recv()
    dist.destroy_process_group()


def _join(place: _Place) -> None:
    torch.set_num_threads(1)
    # Otherwise gloo looks up the host's name, which may have no address.
    # What several ranks do is tested on the CPU, also where there is a device, unless a test says otherwise.
    if place.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["LOCAL_RANK"] = str(place.rank % place.ranks_per_node)
    os.environ["LOCAL_WORLD_SIZE"] = str(place.ranks_per_node)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback
    device = choose_device(place.device)
    prepare_device(device, deterministic=True)
    backend = backend_of(device, place.world_size)
    dist.init_process_group(
        backend,
        device_id=device if "nccl" in backend else None,
        init_method=f"file://{place.store}",
        rank=place.rank,
        world_size=place.world_size,
        timeout=place.timeout,
    )
