"""Joins the process group that torchrun describes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from hydraulis.errors import InvalidInputError
from hydraulis.runtime.rank_zero import from_rank_zero

_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def joined(timeout: timedelta) -> Iterator[int]:
    """Be a rank of the process group for as long as the context lasts; gives the rank.

    Args:
        timeout: of every collective.

    Raises:
        InvalidInputError: the process was not started by torchrun (code `not_torchrun`).
    """
    missing = [name for name in _SET_BY_TORCHRUN if name not in os.environ]
    if missing:
        message = (
            f"{', '.join(missing)} not set: training runs under torchrun; start it as "
            "torchrun --nproc-per-node RANKS -m hydraulis.train RUN.toml"
        )
        raise InvalidInputError(message, code="not_torchrun")
    # A rank is one thread: ranks share the cores, and a second thread each would wait for the others' (an
    # AdamW step of 400 tensors took 22.7 s instead of 45 ms so).
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timeout)
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


def ranks_per_node() -> int:
    """Give the ranks of a node, by rank 0's word, so that all ranks plan for one cluster. Collective.

    Ranks that were started by something else than torchrun count as one node.
    """
    return int(from_rank_zero(lambda: os.environ.get("LOCAL_WORLD_SIZE", str(dist.get_world_size()))))
