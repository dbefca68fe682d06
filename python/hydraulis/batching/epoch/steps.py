"""The division of an epoch into steps, each with nearly the same number of sequences or tokens.

Every sequence is in exactly one step, because the steps are consecutive ranges of the epoch's order. Steps by
sequences or tokens have nearly the same size, so the last one needs no special treatment.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from hydraulis.batching.epoch.order import EpochOrder, Indices
from hydraulis.batching.items.pool import SequencePool
from hydraulis.errors import InvalidInputError

_BLOCK: Final = 1 << 20


class Steps(Protocol):
    """The steps of one epoch."""

    def __len__(self) -> int:
        """Count the steps."""

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first position of a step in the epoch's order, and the position after its last."""


@dataclass(frozen=True, slots=True)
class StepsBySequences:
    """Steps of at most `per_step` sequences, whose sizes differ by at most one.

    Attributes:
        num_sequences: Sequences of the epoch.
        per_step: Most sequences of a step.
        drop_last: Whether steps have exactly `per_step` sequences, and the sequences after them are dropped.
    """

    num_sequences: int
    per_step: int
    drop_last: bool

    def __len__(self) -> int:
        whole = self.num_sequences // self.per_step
        return whole if self.drop_last else -(-self.num_sequences // self.per_step)

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first position of a step, and the position after its last."""
        covered = len(self) * self.per_step if self.drop_last else self.num_sequences
        return step * covered // len(self), (step + 1) * covered // len(self)


@dataclass(frozen=True, slots=True, eq=False)
class StepRanges:
    """Steps with stated bounds.

    Attributes:
        starts: First position of each step, and the end of the last one, int64 [steps + 1].
    """

    starts: Indices

    def __len__(self) -> int:
        return len(self.starts) - 1

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first position of a step, and the position after its last."""
        return int(self.starts[step]), int(self.starts[step + 1])


@dataclass(frozen=True, slots=True)
class TokenShares:
    """Steps of about the same number of tokens; each ends with the sequence that reaches its share.

    Attributes:
        count: Number of steps of every epoch.
        covered: Tokens of all steps together.
    """

    count: int
    covered: int

    def divide(self, pool: SequencePool, order: EpochOrder) -> StepRanges:
        """Divide an epoch in one pass over its order.

        Args:
            pool: Sequences of the epoch.
            order: Order of the epoch.
        """
        # Whole numbers, so that a step's share is the same on every machine.
        shares = [step * self.covered // self.count for step in range(1, self.count + 1)]
        targets = np.array(shares, dtype=np.int64)
        starts = [np.zeros(1, dtype=np.int64)]
        before = 0
        for start in range(0, len(pool), _BLOCK):
            sequences = pool.take(order, start, min(start + _BLOCK, len(pool)))
            reached = before + np.cumsum(pool.occupied(sequences))
            inside = targets[np.searchsorted(targets, before, "right") :]
            inside = inside[: np.searchsorted(inside, reached[-1], "right")]
            starts.append(start + np.searchsorted(reached, inside) + 1)
            before = int(reached[-1])
        return StepRanges(np.concatenate(starts))


def share_tokens(pool: SequencePool, per_step: int, *, drop_last: bool) -> TokenShares:
    """Compute the number of steps of an epoch by tokens.

    Args:
        pool: Sequences of the epoch.
        per_step: Tokens of a step.
        drop_last: Whether steps have at least `per_step` tokens, and the sequences after them are dropped.

    Raises:
        InvalidInputError: A step has fewer tokens than the longest sequence (code `argument_invalid`).
    """
    total, longest, most = pool.count_occupied()
    if per_step < most:
        message = (
            f"tokens_per_step = {per_step:,} is less than the {most:,} tokens of sequence {longest}; raise it"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if drop_last:
        count = total // per_step
        return TokenShares(count, count * per_step)
    # A share below the longest sequence would leave a step empty.
    return TokenShares(min(-(-total // per_step), total // most), total)
