"""Joins the process group that torchrun describes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from hydraulis.runtime.ranks.device import CPU, backend_of, prepare_device
from hydraulis.runtime.ranks.liveness import RollCall, is_lost, lost_rank
from hydraulis.runtime.ranks.node_interface import node_interface
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.ranks.torchrun import require_torchrun

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@contextmanager
def joined(timeout: timedelta, device: torch.device = CPU, *, deterministic: bool = False) -> Iterator[int]:
    """Be a rank of the process group for as long as the context lasts; gives the rank.

    Args:
        timeout: of every collective.
        device: of this rank; on all of one kind.
        deterministic: see `prepare_device`.

    Raises:
        InvalidInputError: the process was not started by torchrun (code `not_torchrun`).
        HydraulisError: another rank ended before this one (code `lost_rank`).
    """
    require_torchrun()
    # A rank is one thread: ranks share the cores, and a second thread each would wait for the others' (an
    # AdamW step of 400 tensors took 22.7 s instead of 45 ms so).
    torch.set_num_threads(1)
    prepare_device(device, deterministic=deterministic)
    _choose_interface()
    backend = backend_of(device, int(os.environ["WORLD_SIZE"]))
    # With its device given NCCL connects all ranks now. Later, its first exchange would have to be of all of
    # them, and that of a pipeline's stages is not; and smaller groups are split off, which is quicker.
    device_id = device if "nccl" in backend else None
    dist.init_process_group(backend, timeout=timeout, device_id=device_id)
    # Only the account of a loss lacks it where the store is not to be had.
    with suppress(RuntimeError):
        RollCall().sign_in()
    try:
        yield dist.get_rank()
    except BaseException as error:
        # To destroy a group is to wait until NCCL has ended what it began. Of a rank that fails alone, for
        # want of memory say, nobody has heard: all would wait, and its error would not be told.
        _abort_process_group()
        if is_lost(error):
            raise lost_rank(error) from error
        raise
    dist.destroy_process_group()


def _choose_interface() -> None:
    """Tell gloo by which interface other nodes reach this one, unless the user has or its name says so."""
    is_one_node = os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]
    if not is_one_node and GLOO_INTERFACE not in os.environ:
        interface = node_interface(os.environ["MASTER_ADDR"])
        if interface is not None:
            os.environ[GLOO_INTERFACE] = interface


def ranks_per_node() -> int:
    """Give the ranks of a node, by rank 0's word, so that all ranks plan for one cluster. Collective.

    Ranks that were started by something else than torchrun count as one node.
    """
    return int(from_rank_zero(lambda: os.environ.get("LOCAL_WORLD_SIZE", str(dist.get_world_size()))))
