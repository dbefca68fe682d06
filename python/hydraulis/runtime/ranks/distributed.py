"""Joins the process group described by torchrun's environment variables."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from hydraulis._core import Cluster
from hydraulis.errors import LOST_RANK, HydraulisError
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import CPU, prepare_device
from hydraulis.runtime.ranks.flight_recorder import dump_collectives, set_up_recorder
from hydraulis.runtime.ranks.joining import LivenessSettings, join
from hydraulis.runtime.ranks.liveness.bounded import call_within
from hydraulis.runtime.ranks.liveness.check import broken_connection, failure_of, is_lost
from hydraulis.runtime.ranks.node_interface import node_interface
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.ranks.torchrun import require_torchrun

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
# Longest wait in seconds for the groups to end.
_ABORT_S = 5.0


@contextmanager
def joined(
    timeout: timedelta,
    device: torch.device = CPU,
    *,
    deterministic: bool = False,
    liveness: LivenessSettings | None = None,
    channels: int = 16,
) -> Iterator[int]:
    """Join the process group for the duration of the context, and yield the rank's number.

    Args:
        timeout: Timeout of every collective, and of joining.
        device: This rank's device; all ranks have the same kind.
        deterministic: Whether repeated runs must give bitwise equal results (see `prepare_device`).
        liveness: Limit of the start, and reactions to a stop while ranks join and to the loss of a rank; the
            defaults if left out.
        channels: Most channels of WORLD's NCCL communicator, by which neighbouring stages send to each other.

    Raises:
        InvalidInputError: The process was not started by torchrun (code `not_torchrun`).
        HydraulisError: Another rank did not join, or ended before this one (code `lost_rank`).
        KeyboardInterrupt: The run was interrupted while ranks joined.
    """
    require_torchrun()
    # One thread per rank: ranks share the cores, and a second thread of each would wait for the other ranks'
    # threads (an AdamW step of 400 tensors then took 22.7 s instead of 45 ms).
    torch.set_num_threads(1)
    prepare_device(device, deterministic=deterministic)
    if device.type == "cuda":
        set_up_recorder()
    _choose_interface()
    heartbeat = join(timeout, device, liveness or LivenessSettings(), channels)
    try:
        yield dist.get_rank()
    except BaseException as error:
        lost = _loss_of(error)
        # First of all: the other ranks may wait for this one on their devices, and what follows may block.
        if lost is None:
            heartbeat.leave(failed=True, failure=failure_of(error))
        else:
            heartbeat.tell(lost)
        if device.type == "cuda":
            dump_collectives(dist.get_rank())
        _abort_groups()
        host.disconnect()
        if lost is not None and lost is not error:
            raise lost from error
        raise
    dist.destroy_process_group()
    host.disconnect()
    heartbeat.leave()


def _loss_of(error: BaseException) -> HydraulisError | None:
    """Return the error of a rank that lost another one; None for an error of its own."""
    if isinstance(error, HydraulisError):
        return error if error.code == LOST_RANK else None
    return broken_connection(error) if is_lost(error) else None


def _abort_groups() -> None:
    """End the groups without waiting for their work, within a limit.

    Destroying a group waits until NCCL has finished its work. If one rank fails alone, for example out of
    memory, the other ranks do not know: all would wait, and the error would not be reported. Aborting one
    group can wait too, for a kernel of another one (pytorch#119797): the call is then left behind, and ends
    with the process.
    """
    with suppress(Exception):
        call_within(_ABORT_S, _abort_process_group)


def _choose_interface() -> None:
    """Set gloo's network interface on several nodes, unless the user set it or the node's name suffices."""
    is_one_node = os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]
    if not is_one_node and GLOO_INTERFACE not in os.environ:
        interface = node_interface(os.environ["MASTER_ADDR"])
        if interface is not None:
            os.environ[GLOO_INTERFACE] = interface


def ranks_per_node() -> int:
    """Return rank 0's number of ranks per node, so that all ranks plan for the same cluster. Collective.

    Ranks that another launcher than torchrun started count as one node.
    """
    return from_rank_zero(lambda: int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size())))


def run_cluster() -> Cluster:
    """Return the cluster of the run's ranks, none of them slow. Collective."""
    return Cluster(gpus=dist.get_world_size(), gpus_per_node=ranks_per_node())
