"""The one all-reduce of a step: the numbers of which every rank needs the sum over all ranks, and the votes.

The numbers are added on the ranks' devices. The host waits for its device there only: for the step's work,
and for the sums.
"""

import math
from collections.abc import Callable, Sequence
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


class Votes:
    """Counts the ranks that say yes to each question; the all-reduce of every step carries the answers.

    Every rank asks the same questions in the same order.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Callable[[], bool]] = {}
        self._counts: dict[str, int] = {}

    def ask(self, question: str, answer: Callable[[], bool]) -> None:
        """Ask a question in every following step.

        Args:
            question: Name of the question; an earlier one of the same name is replaced.
            answer: Function that returns this rank's answer.
        """
        self._answers[question] = answer
        self.forget(question)

    def cast(self) -> list[bool]:
        """Return this rank's answers, in the order of the questions."""
        return [answer() for answer in self._answers.values()]

    def take(self, counts: Sequence[int]) -> None:
        """Take the number of ranks that said yes to each question."""
        self._counts = dict(zip(self._answers, counts, strict=True))

    def forget(self, question: str) -> None:
        """Drop the count of a question, which an event has outdated."""
        self._counts.pop(question, None)

    def count(self, question: str) -> int | None:
        """Return the ranks that said yes in the last step; None without a count since `ask` or `forget`."""
        return self._counts.get(question)
