"""The start of a process group: the ranks meet in torchrun's store, and connect to each other."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hydraulis.errors import HydraulisError
from hydraulis.parallel.communicators import nccl_options
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import backend_of
from hydraulis.runtime.ranks.liveness.bounded import Stopped, call_within
from hydraulis.runtime.ranks.liveness.check import (
    LivenessCheck,
    broken_connection,
    failure_of,
    is_lost,
    lost_rank,
)
from hydraulis.runtime.ranks.liveness.heartbeat import Heartbeat, set_current
from hydraulis.runtime.ranks.meeting import Meeting
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.ranks.torchrun import AGENT_STORE

T = TypeVar("T")

_NODE_KEY = "ranks_per_node"
# Least limit of a request to the store by the liveness thread. A later answer ends the thread, and the rank's
# signs of life with it: a store on busy cores gets half of the silence after which a rank is lost.
_STORE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """The start of a rank, and its end if it is asked to stop or loses another rank.

    Attributes:
        start_timeout_s: Most seconds of each part of joining; None for the timeout of the collectives.
        silence_s: Seconds without a sign of life after which a rank is lost.
        stop: Request to end the run; None if signals have their default effects.
        end: Function that prints the report of a loss and ends the process (see `Heartbeat`); None to let
            the collectives fail.
    """

    start_timeout_s: float | None = None
    silence_s: float = 60.0
    stop: StopRequest | None = None
    end: Callable[[HydraulisError | None], None] | None = None


def join(timeout: timedelta, device: torch.device, settings: LivenessSettings, channels: int) -> Heartbeat:
    """Join the process group that torchrun's environment variables describe.

    Args:
        timeout: Timeout of every collective, and most time of each part of joining unless settings say
            otherwise.
        device: This rank's device.
        settings: Limit of the start, and reactions to a stop and to a loss.
        channels: Most channels of WORLD's NCCL communicator.

    Returns:
        The heartbeat of this rank.

    Raises:
        HydraulisError: A rank did not join in time, ended, or the run was terminated while ranks joined (code
            `lost_rank`).
        KeyboardInterrupt: The run was interrupted while ranks joined.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    start = timeout if settings.start_timeout_s is None else timedelta(seconds=settings.start_timeout_s)
    within = partial(_within, start, settings.stop)
    store = within(partial(_open_store, rank, world_size, timeout))
    meeting = Meeting(store, rank, world_size, start)
    attempt = within(meeting.find)
    heartbeat = within(partial(_start_heartbeat, attempt, rank, world_size, settings))
    heartbeat.timeout_s = timeout.total_seconds()
    if settings.stop is not None:
        heartbeat.is_ending = settings.stop.is_ending
    set_current(heartbeat, store)
    within(meeting.complete)
    groups = PrefixStore(f"{attempt}/groups", store)
    within(partial(_connect, groups, rank, world_size, timeout, device, channels))
    return heartbeat


def tell_refusal(timeout: timedelta, error: HydraulisError) -> None:
    """Meet the other ranks of a run that this rank refuses, and let those that do not refuse it end.

    Args:
        timeout: Most time of each part of the meeting.
        error: Reason of the refusal.

    Raises:
        HydraulisError: Another rank did not join in time (code `lost_rank`).
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    within = partial(_within, timeout, None)
    store = within(partial(_open_store, rank, world_size, timeout))
    meeting = Meeting(store, rank, world_size, timeout)
    attempt = within(meeting.find)
    check = within(partial(_liveness_check, attempt, rank, world_size, LivenessSettings().silence_s))
    within(check.sign_in)
    # Before the call: a rank that ends must not be the one that reports for all.
    within(partial(check.leave, failed=True))
    within(meeting.complete)
    if failure := failure_of(error):
        within(partial(check.call, f"rank {rank} failed: {failure}"))


def _within(timeout: timedelta, stop: StopRequest | None, function: Callable[[], T]) -> T:
    """Call a function that waits for other ranks, so that this thread handles signals and the time ends."""
    try:
        return call_within(
            timeout.total_seconds(), function, lambda: stop is not None and stop.signal is not None
        )
    except Stopped as stopped:
        assert stop is not None
        if stop.signal == signal.SIGINT:
            raise KeyboardInterrupt from stopped
        # torchrun terminates the ranks after one has ended.
        why = "terminated while the ranks joined: another rank's report has the cause, or torchrun's"
        raise lost_rank(why) from stopped
    except TimeoutError as error:
        why = (
            f"the ranks did not join within {timeout.total_seconds():g} s: the report of a missing rank has "
            "the cause; ranks that start slowly need a longer train.start_timeout_s"
        )
        raise lost_rank(why) from error
    except RuntimeError as error:
        raise (broken_connection(error) if is_lost(error) else error) from error


def _open_store(rank: int, world_size: int, timeout: timedelta) -> Store:
    """Connect to the launcher's store; where it has none for its ranks, rank 0 serves one."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and os.environ.get(AGENT_STORE) != "True"
    # Ranks are waited for by the meeting, which names the missing ones.
    return TCPStore(
        *address, world_size, serves, timeout=timeout, wait_for_workers=False, multi_tenant=serves
    )


def _start_heartbeat(attempt: str, rank: int, world_size: int, settings: LivenessSettings) -> Heartbeat:
    check = _liveness_check(attempt, rank, world_size, settings.silence_s)
    heartbeat = Heartbeat(check, rank, world_size, settings.silence_s, settings.end)
    heartbeat.start()
    return heartbeat


def _liveness_check(attempt: str, rank: int, world_size: int, silence_s: float) -> LivenessCheck:
    # A connection of its own: requests of one connection wait for each other.
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=max(_STORE_S, silence_s / 2))
    store = PrefixStore(f"{attempt}/liveness", TCPStore(*address, timeout=limit))
    of_node = int(os.environ["LOCAL_WORLD_SIZE"])
    first = rank - int(os.environ.get("LOCAL_RANK", rank % of_node))
    return LivenessCheck(store, rank, world_size, range(first, first + of_node))


def _connect(
    store: Store, rank: int, world_size: int, timeout: timedelta, device: torch.device, channels: int
) -> None:
    ranks_per_node = _ranks_per_node(store, rank, world_size)
    has_host_groups = host.has_levels(world_size, ranks_per_node)
    backend = backend_of(device, world_size, has_host_groups=has_host_groups)
    # With a device NCCL connects all ranks now. Without one the first exchange would have to include all
    # ranks, but that of a pipeline's stages does not. Smaller groups are also split off, which is faster.
    device_id, options = (device, nccl_options(channels, timeout)) if "nccl" in backend else (None, None)
    if device_id is not None:
        # A thread's current device is the first one of the node by default.
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        pg_options=options,
        device_id=device_id,
    )
    host.connect(ranks_per_node, timeout)


def _ranks_per_node(store: Store, rank: int, world_size: int) -> int:
    """Return rank 0's number of ranks per node, read from the store because no group exists yet."""
    if rank == 0:
        store.set(_NODE_KEY, os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    return int(store.get(_NODE_KEY))
