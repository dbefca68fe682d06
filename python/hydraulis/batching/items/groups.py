"""Groups of sequences that stay in one micro-batch, such as the answers to one prompt.

The planner sees a group as one item. Its tokens are the common prefix, once, and the rest of each sequence;
its attention is that of the tree: `p^2` for a prefix of `p` tokens, and `s^2 - p^2` for each sequence of `s`.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from hydraulis.batching.epoch.order import Indices
from hydraulis.batching.items.lengths import Lengths, open_lengths, summarize
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of a data set, in the order of their first sequences.

    Attributes:
        members: Sequences of all groups, group after group, int64 [n].
        offsets: First of each group's `members`, and their number at the end, int64 [groups + 1].
        tokens: Tokens of each group with its prefix once, int64 [groups].
        squares: Squared tokens of each group's attention, int64 [groups].
    """

    members: Indices
    offsets: Indices
    tokens: Indices
    squares: Indices

    def expand(self, groups: Indices) -> Indices:
        """Return the sequences of groups, group after group."""
        parts = [self.members[self.offsets[group] : self.offsets[group + 1]] for group in groups]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def checksum(self, start: int) -> int:
        """Return the CRC-32 of the members of each group, after data of the checksum `start`."""
        members = np.ascontiguousarray(self.members, dtype=np.int64).data
        offsets = np.ascontiguousarray(self.offsets, dtype=np.int64).data
        return zlib.crc32(offsets, zlib.crc32(members, start))


def open_groups(lengths: Lengths, groups: object, prefix_tokens: object) -> Groups | None:
    """Make the groups of a sampler; None without groups.

    Args:
        lengths: Tokens of each sequence with the prefix.
        groups: Number of each sequence's group, in a form of the lengths; None for no groups.
        prefix_tokens: Tokens of each sequence's prefix, in a form of the lengths; None for none.
    """
    if groups is None:
        return None
    prefixes = None if prefix_tokens is None else open_lengths(prefix_tokens, name="prefix_tokens")
    return make_groups(lengths, open_lengths(groups, name="groups"), prefixes)


def make_groups(lengths: Lengths, labels: Lengths, prefixes: Lengths | None) -> Groups:
    """Collect the sequences of each group.

    Args:
        lengths: Tokens of each sequence with the prefix.
        labels: Number of each sequence's group, any integers.
        prefixes: Tokens of the prefix that each sequence shares with the rest of its group; None for none.

    Raises:
        InvalidInputError: The arrays differ in size, a prefix is longer than its sequence, or the sequences
            of a group have different prefixes (code `lengths_invalid`).
    """
    summarize(lengths)
    prefix = np.zeros(len(lengths), dtype=np.int64)
    prefix = prefix if prefixes is None else np.asarray(prefixes, dtype=np.int64)
    _check(lengths, labels, prefix)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[inverse]
    members = np.argsort(number, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(number))))
    shared = prefix[members[offsets[:-1]]]
    differing = np.flatnonzero(prefix != shared[number])
    if differing.size:
        message = (
            f"sequence {differing[0]} has a prefix of {prefix[differing[0]]} tokens, and the first of its "
            f"group has {shared[number[differing[0]]]}; give the sequences of a group one prefix"
        )
        raise InvalidInputError(message, code="lengths_invalid")
    whole = lengths[members].astype(np.int64)
    rests = np.add.reduceat(whole - prefix[members], offsets[:-1])
    squares = np.add.reduceat(whole**2 - prefix[members] ** 2, offsets[:-1])
    return Groups(members, offsets, shared + rests, shared**2 + squares)


def _check(lengths: Lengths, labels: Lengths, prefix: Indices) -> None:
    for name, values in (("groups", labels), ("prefix_tokens", prefix)):
        if len(values) != len(lengths):
            message = (
                f"{name} has {len(values)} entries and lengths {len(lengths)}: give one for each sequence"
            )
            raise InvalidInputError(message, code="lengths_invalid")
    wrong = np.flatnonzero((prefix < 0) | (prefix > lengths))
    if wrong.size:
        message = (
            f"sequence {wrong[0]} has a prefix of {prefix[wrong[0]]} tokens and {lengths[wrong[0]]} tokens "
            "in all; a prefix is a part of its sequence"
        )
        raise InvalidInputError(message, code="lengths_invalid")
