"""The sequences or groups of an epoch, and the tokens that each occupies in a micro-batch."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.epoch.order import EpochOrder, Indices
from hydraulis.batching.items.groups import Groups
from hydraulis.batching.items.lengths import Lengths, LengthSummary, summarize
from hydraulis.batching.items.values import ItemValues
from hydraulis.batching.step_planner import StepItems
from hydraulis.errors import InfeasibleError

TooLong = Literal["refuse", "drop", "truncate"]

_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class SequencePool:
    """The items that an epoch trains: sequences, or groups of them.

    Attributes:
        lengths: Tokens of each item of the data set.
        summary: Summary of all lengths of the data set.
        kept: Indices of the items within the cap; None if every item is.
        limit: Most tokens of an item; a longer one is truncated to it.
        multiple: Multiple to which each item is padded.
        groups: Groups that are the items; None if the items are sequences.
        values: Values of the items beyond their tokens.
    """

    lengths: Lengths
    summary: LengthSummary
    kept: Indices | None
    limit: int
    multiple: int
    groups: Groups | None
    values: ItemValues

    def __len__(self) -> int:
        return len(self.lengths) if self.kept is None else len(self.kept)

    @property
    def num_dropped(self) -> int:
        """Number of items that are left out because they are longer than the cap."""
        return len(self.lengths) - len(self)

    @property
    def checksum(self) -> int:
        """CRC-32 of the items' lengths, and of the members of groups."""
        return self.summary.checksum if self.groups is None else self.groups.checksum(self.summary.checksum)

    def take(self, order: EpochOrder, start: int, stop: int) -> Indices:
        """Return the indices in the data set of a range of an epoch's order, int64 [stop - start]."""
        places = order(start, stop)
        return places if self.kept is None else self.kept[places]

    def tokens(self, sequences: Indices) -> Indices:
        """Return the tokens of sequences without padding, int64 [n]."""
        return np.minimum(self.lengths[sequences].astype(np.int64), self.limit)

    def occupied(self, sequences: Indices) -> Indices:
        """Return the tokens of sequences with the padding of each, int64 [n]."""
        return -(-self.tokens(sequences) // self.multiple) * self.multiple

    def times(self, items: Indices, cost: SequenceCost, *, padded: bool = True) -> npt.NDArray[np.float64]:
        """Return the time of items, float64 [n].

        Args:
            items: Indices of the items.
            cost: Time of a sequence.
            padded: Whether the padding of each item counts.
        """
        tokens = self.occupied(items) if padded else self.tokens(items)
        times = cost.times(tokens)
        if self.groups is not None:
            times = cost.linear * tokens + cost.quadratic * self.groups.squares[items]
        work = self.values.work_of(items)
        return times if work is None else times + work

    def step_items(self, items: Indices, cost: SequenceCost) -> StepItems:
        """Return the values of items by which a step is planned."""
        follows_tokens = self.groups is None and self.values.work is None
        times = None if follows_tokens else self.times(items, cost)
        return StepItems(items, self.occupied(items), times, self.values.extra_of(items))

    def expand(self, items: Indices) -> Indices:
        """Return the sequences of items, item after item."""
        return items if self.groups is None else self.groups.expand(items)

    def count_occupied(self) -> tuple[int, int, int]:
        """Count the occupied tokens of all sequences, and find the first longest one and its tokens."""
        total = longest = most = 0
        everything = EpochOrder(max(1, len(self)), 0, 0, shuffle=False)
        for start in range(0, len(self), _BLOCK):
            sequences = self.take(everything, start, min(start + _BLOCK, len(self)))
            occupied = self.occupied(sequences)
            total += int(occupied.sum())
            place = int(occupied.argmax())
            if occupied[place] > most:
                longest, most = int(sequences[place]), int(occupied[place])
        return total, longest, most


def token_limit(cap_tokens: int, pad_to: int, pad_sequence_to: int) -> int:
    """Return the most tokens of a sequence that with its padding fits into a micro-batch with its padding."""
    return cap_tokens // pad_to * pad_to // pad_sequence_to * pad_sequence_to


def make_pool(
    lengths: Lengths,
    cap_tokens: int,
    too_long: TooLong,
    multiple: int,
    groups: Groups | None = None,
    values: ItemValues | None = None,
) -> SequencePool:
    """Check the lengths and apply the treatment of items longer than the cap.

    Args:
        lengths: Tokens of each item.
        cap_tokens: Most tokens of a micro-batch, at least `multiple`.
        too_long: Treatment of sequences whose padded tokens exceed the cap.
        multiple: Multiple to which each item is padded.
        groups: Groups that are the items; None if the items are sequences.
        values: Values of the items beyond their tokens; None for none.

    Raises:
        InvalidInputError: A length is outside its range (code `lengths_invalid`).
        InfeasibleError: A sequence exceeds the cap and is refused, or all of them are dropped
            (`sequence_too_long`).
    """
    summary = summarize(lengths)
    limit = token_limit(cap_tokens, 1, multiple)
    kept: Any = None
    if summary.longest_tokens > limit and too_long != "truncate":
        message = (
            f"{'sequence' if groups is None else 'group'} {summary.longest} has {summary.longest_tokens:,} "
            f"tokens, and a micro-batch has at most {limit:,}; raise cap_tokens, or choose too_long='drop' "
            "or 'truncate'"
        )
        if too_long == "drop":
            kept = np.flatnonzero(lengths <= limit)
        if kept is None or not len(kept):
            raise InfeasibleError(message, code="sequence_too_long")
    return SequencePool(lengths, summary, kept, limit, multiple, groups, values or ItemValues())
