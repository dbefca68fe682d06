"""What the ranks of test_ranks.py do."""

import gc
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import Tensor

MODULES = set(sys.modules)


def imported_at_first() -> tuple[set[str], int]:
    """Give what was imported before this module, and how many objects are never looked at as garbage."""
    return MODULES, gc.get_freeze_count()


def scaled_sum(value_2: Tensor) -> tuple[int, Tensor, int]:
    total = value_2 * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return dist.get_rank(), total, torch.get_num_threads()


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        message = "a planted mistake"
        raise ValueError(message)
    dist.barrier()


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    time.sleep(600)


def sleep_on(rank: int) -> int:
    if dist.get_rank() == rank:
        time.sleep(600)
    return os.getpid()


def warn() -> None:
    warnings.warn("a planted warning", stacklevel=1)


def is_alive_after_it_is_done(seconds: float) -> bool:
    """On rank 1: whether the process of rank 0 is there some time after it has returned."""
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, src=0)
    if dist.get_rank() == 0:
        return True
    time.sleep(seconds)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def return_unpicklable() -> object:
    return lambda: None
