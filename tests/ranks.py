"""Runs a function on several ranks, each in its own process, and gives back what they returned.

    from parallel.tensor_workers import loss_and_gradients
    results = run_ranks(4, loss_and_gradients, config, lengths, num_stages)

The function runs in a process that has already joined a gloo group of all ranks on the loopback interface,
with one torch thread and with warnings as errors; it asks `torch.distributed` for its rank. It must be
importable by name, so it lives in a module `*_workers.py` and not in the test. Arguments and results must be
picklable; tensors are copied.

HYDRAULIS_TEST_DEVICE=cuda runs the ranks on CUDA devices instead, with NCCL between them, and skips where
there is none: `make test-gpu` selects the tests that mean the same there, by the marker `devices`. Ranks
share devices if there are too few. Tensors among the arguments are then on the rank's device, and results
come back on the CPU.

A rank that raises, dies or overruns the timeout fails the call with its number and traceback; a late one with
the stacks of its threads. No rank outlives the call. A rank that is done, or has failed, waits for the rest:
so none of them sees a closed connection before the parent has seen the cause.

Processes come from a fork server that has imported torch and hydraulis once (ranks_server.py): 0.3 s for 8
ranks on 2 cores, after a first call of about 4 s. Forking the test process itself would copy locks that its
threads hold.
"""

import faulthandler
import functools
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from hydraulis.config.kinds import DeviceKind
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import CPU, backend_of, choose_device, prepare_device
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE, set_nccl_up

# Ranks that hang end by it; on a machine with other work ranks take several times as long as alone.
TIMEOUT_SECONDS = 180.0
# Ranks that share a device take turns on it, and each starts CUDA and NCCL.
CUDA_PATIENCE = 4.0
DEVICE_VARIABLE = "HYDRAULIS_TEST_DEVICE"
# Seconds for a rank to write its stacks.
_STACKS_SECONDS = 2.0


class RankError(Exception):
    """A rank raised, died, or overran the timeout."""


class _Place(NamedTuple):
    rank: int
    world_size: int
    store: Path
    timeout: timedelta
    device: DeviceKind
    ranks_per_node: int
    environment: Mapping[str, str]


class _Child(NamedTuple):
    process: BaseProcess
    connection: "Connection[Any, Any]"
    stacks: Path


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_seconds: float = TIMEOUT_SECONDS,
    device: DeviceKind | None = None,
    ranks_per_node: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `function(*args)` on every rank.

    Args:
        world_size: Number of ranks.
        function: Function that is importable by name.
        args: Arguments, the same for every rank.
        timeout_seconds: Limit of the whole call, and of each collective.
        device: `cpu`, or `cuda` for CUDA devices, with NCCL between them; if left out, the kind that the
            environment names, else `cpu`.
        ranks_per_node: Ranks of each pretended node, as torchrun counts them; all ranks if left out.
        environment: Variables of every rank, set before CUDA starts.

    Returns:
        The results, by rank.

    Raises:
        RankError: A rank raised, died, or was not done in time.
    """
    kind = device or kind_of_ranks()
    if kind == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        timeout_seconds *= CUDA_PATIENCE
    # Pickled here, because the processes' own pickler would move tensors through shared memory.
    call = pickle.dumps((function, args))
    deadline = time.monotonic() + timeout_seconds
    children: list[_Child] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(world_size):
                timeout = timedelta(seconds=timeout_seconds)
                store = Path(folder) / "store"
                node = ranks_per_node or world_size
                place = _Place(rank, world_size, store, timeout, kind, node, environment or {})
                children.append(_start(place, call))
            results = _collect(children, deadline)
            _dismiss(children, deadline)
        finally:
            _stop(children)
    return results


def kind_of_ranks() -> DeviceKind:
    """Give the kind of device of ranks whose test names none; in a rank, the rank's own."""
    return "cuda" if os.environ.get(DEVICE_VARIABLE) == "cuda" else "cpu"


def own_device() -> torch.device:
    """Give the device of the rank that asks."""
    return torch.device("cuda", torch.cuda.current_device()) if kind_of_ranks() == "cuda" else CPU


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
    return _Child(process, connection, _stacks_of(place))


def _collect(children: Sequence[_Child], deadline: float) -> list[Any]:
    waiting = {rank: child.connection for rank, child in enumerate(children)}
    results: dict[int, Any] = {}
    while waiting:
        ready = wait(waiting.values(), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = {rank: children[rank] for rank in waiting}
            message = f"ranks {list(late)} were not done in time\n{_stacks(late)}"
            raise RankError(message)
        for rank in [rank for rank, connection in waiting.items() if connection in ready]:
            results[rank] = _result(rank, children[rank], waiting.pop(rank))
    return [results[rank] for rank in range(len(children))]


def _stacks(late: Mapping[int, _Child]) -> str:
    """Let these ranks write the stacks of their threads, and read them."""
    for child in late.values():
        if child.process.pid is not None:
            os.kill(child.process.pid, signal.SIGUSR1)
    # No event tells that a rank has written.
    time.sleep(_STACKS_SECONDS)
    return "\n".join(f"rank {rank}:\n{_read(child.stacks)}" for rank, child in late.items())


def _read(stacks: Path) -> str:
    return stacks.read_text(encoding="utf-8") if stacks.exists() else "(it had not started)"


def _result(rank: int, child: _Child, connection: "Connection[Any, Any]") -> Any:
    try:
        succeeded, value = pickle.loads(connection.recv_bytes())
    except EOFError:
        child.process.join(1.0)
        message = f"rank {rank} died without a word, exit status {child.process.exitcode}"
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
    # On a device torch and NCCL also warn of the machine.
    warnings.simplefilter("error" if place.device == "cpu" else "default")
    stacks = _stacks_of(place).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, stacks)
    try:
        device = _join(place)
        function, args = pickle.loads(call)
        result = function(*(_moved(args, device) if device != CPU else args))
        report = pickle.dumps((True, _moved(result, CPU) if device != CPU else result))
    except BaseException:
        report = pickle.dumps((False, traceback.format_exc()))
    connection.send_bytes(report)
    connection.recv()
    dist.destroy_process_group()


def _stacks_of(place: _Place) -> Path:
    """Return the file in which a rank writes its stacks when it is late."""
    return place.store.with_name(f"stacks-{place.rank}.txt")


def _moved(values: Any, device: torch.device) -> Any:
    """Move the tensors in lists, tuples and mappings."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(device), values)


def _join(place: _Place) -> torch.device:
    torch.set_num_threads(1)
    os.environ |= {**place.environment, DEVICE_VARIABLE: place.device}
    # Otherwise gloo looks up the host's name, which may have no address.
    # What several ranks do is tested on the CPU, also where there is a device, unless a test says otherwise.
    if place.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["LOCAL_RANK"] = str(place.rank % place.ranks_per_node)
    os.environ["LOCAL_WORLD_SIZE"] = str(place.ranks_per_node)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback
    if place.device == "cuda":
        _share_devices(place, loopback)
    device = choose_device(place.device)
    prepare_device(device, deterministic=True)
    if "TORCH_CUDA_SANITIZER" in place.environment:
        # Torch asks for it when it is imported, which the fork server did before. The import alone makes
        # torch call Python for each event and allocation; an exception that passes C++ then is lost.
        from torch.cuda._sanitizer import enable_cuda_sanitizer

        enable_cuda_sanitizer()
    has_host_groups = host.has_levels(place.world_size, place.ranks_per_node)
    backend = backend_of(device, place.world_size, has_host_groups=has_host_groups)
    dist.init_process_group(
        backend,
        device_id=device if "nccl" in backend else None,
        init_method=f"file://{place.store}",
        rank=place.rank,
        world_size=place.world_size,
        timeout=place.timeout,
    )
    host.connect(place.ranks_per_node, place.timeout)
    return device


def _share_devices(place: _Place, loopback: str) -> None:
    """Let ranks share devices, if there are too few or several ranks have the same number in their node."""
    os.environ |= {"RANK": str(place.rank), "WORLD_SIZE": str(place.world_size)}
    os.environ |= {SHARE_VARIABLE: "1", "NCCL_SOCKET_IFNAME": loopback}
    if place.ranks_per_node < place.world_size:
        set_nccl_up()
