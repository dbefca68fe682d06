"""What the ranks of test_ranks.py do."""

import os
import time

import torch
import torch.distributed as dist
from torch import Tensor


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


def return_unpicklable() -> object:
    return lambda: None
