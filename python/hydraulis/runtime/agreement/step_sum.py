"""The one all-reduce of a step: the numbers of which every rank needs the sum over all ranks.

The numbers are added on the ranks' devices. The host waits for its device there only: for the step's work,
and for the sums.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.runtime.agreement.step_digest import MODULUS
from hydraulis.runtime.ranks.host_wait import wait_for_device


class StepTerms(NamedTuple):
    """The terms of one rank.

    Attributes:
        loss: Sum of the rank's terms of the mean loss, a scalar on the rank's device.
        square: Sum of the squares of the rank's part of the gradient, a scalar on the same device.
        has_failed: Whether the rank has an error.
        digest: Weighted digests of the rank (see `weighted_digest`).
        votes: The rank's answers to the questions of the run (see `Votes`).
    """

    loss: Tensor
    square: Tensor
    has_failed: bool = False
    digest: Sequence[int] = ()
    votes: Sequence[bool] = ()


class StepSum(NamedTuple):
    """The sums over all ranks, the same on each.

    Attributes:
        loss: Mean loss of the batch.
        norm: Norm of the whole gradient.
        num_failed: Ranks with an error.
        is_same: Whether the digests agree.
        votes: Ranks that said yes to each question.
    """

    loss: float
    norm: float
    num_failed: int
    is_same: bool
    votes: Sequence[int]


def sum_step(terms: StepTerms) -> StepSum:
    """Add up the terms of all ranks. Collective; on CUDA it waits for the device.

    Float64 adds the counts and digests exactly: each digest is below 2**32, and 2**21 ranks may add theirs.

    Raises:
        HydraulisError: Another rank was lost while the device worked (see `wait_until`).
    """
    # A copy from the host blocks until earlier work of the stream is done.
    wait_for_device(terms.loss.device)
    counts = [float(terms.has_failed), *map(float, terms.digest), *map(float, terms.votes)]
    scalars = torch.stack([terms.loss.double(), terms.square.double()])
    sums = torch.cat([scalars, torch.tensor(counts, dtype=torch.float64).to(scalars.device)])
    # A single rank on a device has no communicator for device tensors.
    if dist.get_world_size() > 1:
        dist.all_reduce(sums)
    wait_for_device(sums.device)
    loss, square, *rest = sums.tolist()
    num_failed, *others = map(int, rest)
    digests, votes = others[: len(terms.digest)], others[len(terms.digest) :]
    return StepSum(
        loss=loss,
        norm=math.sqrt(square),
        num_failed=num_failed,
        is_same=all(digest % MODULUS == 0 for digest in digests),
        votes=votes,
    )
