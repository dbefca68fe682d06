"""Values of items beyond their tokens: further time, and tokens of a second kind, such as those of images."""

import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hydraulis.batching.epoch.order import Indices
from hydraulis.batching.items.groups import Groups
from hydraulis.errors import InfeasibleError, InvalidInputError

_BLOCK: Final = 1 << 20
Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class ItemValues:
    """Values of each item; None where items have none.

    Attributes:
        work: Time in addition to that of the tokens, in the unit of the cost, [n].
        extra_tokens: Tokens that count against the cap on extra tokens, [n].
        checksum: CRC-32 of all values, 0 without any.
    """

    work: Column | None = None
    extra_tokens: Column | None = None
    checksum: int = 0

    def work_of(self, items: Indices) -> npt.NDArray[np.float64] | None:
        """Return the further time of items, float64 [n]."""
        return None if self.work is None else np.asarray(self.work[items], dtype=np.float64)

    def extra_of(self, items: Indices) -> Indices | None:
        """Return the extra tokens of items, int64 [n]."""
        return None if self.extra_tokens is None else np.asarray(self.extra_tokens[items], dtype=np.int64)


def make_values(
    sequences: int, work: object, extra_tokens: object, cap_extra: int | None, groups: Groups | None
) -> ItemValues:
    """Check the values of all sequences, and add them up over groups.

    Args:
        sequences: Number of sequences.
        work: Further time of each sequence, an array or a memory map; None for none.
        extra_tokens: Extra tokens of each sequence, in whole numbers; None for none.
        cap_extra: Most extra tokens of a micro-batch; None without extra tokens.
        groups: Groups that are the items; None if the items are sequences.

    Raises:
        InvalidInputError: The number, type or range of values is wrong (code `lengths_invalid`), or only one
            of `extra_tokens` and `cap_extra` is given (`argument_invalid`).
        InfeasibleError: An item has more extra tokens than the cap (`sequence_too_long`).
    """
    if (extra_tokens is None) != (cap_extra is None):
        message = "extra_tokens and cap_extra_tokens belong together: give both, or neither"
        raise InvalidInputError(message, code="argument_invalid")
    checksum = 0
    columns: list[Column | None] = []
    for name, source, kinds in (("work", work, "iuf"), ("extra_tokens", extra_tokens, "iu")):
        column = None if source is None else _checked(name, source, kinds, sequences)
        if column is not None:
            checksum = zlib.crc32(name.encode(), checksum)
            for start in range(0, sequences, _BLOCK):
                checksum = zlib.crc32(column[start : start + _BLOCK].tobytes(), checksum)
            if groups is not None:
                column = np.add.reduceat(column[groups.members], groups.offsets[:-1])
        columns.append(column)
    _check_cap(columns[1], cap_extra, "sequence" if groups is None else "group")
    return ItemValues(columns[0], columns[1], checksum)


def _checked(name: str, source: object, kinds: str, sequences: int) -> Column:
    column = np.asarray(source)
    if column.shape != (sequences,) or column.dtype.kind not in kinds:
        message = (
            f"{name} has shape {column.shape} and dtype {column.dtype}: give one "
            f"{'number' if 'f' in kinds else 'whole number'} for each of the {sequences} sequences"
        )
        raise InvalidInputError(message, code="lengths_invalid")
    for start in range(0, sequences, _BLOCK):
        block = column[start : start + _BLOCK]
        wrong = np.flatnonzero(~((block >= 0) & (block < np.inf)))
        if wrong.size:
            message = (
                f"{name} of sequence {start + wrong[0]} is {block[wrong[0]]}: it must be finite and at least "
                "0; correct it"
            )
            raise InvalidInputError(message, code="lengths_invalid")
    return column


def _check_cap(extra: Column | None, cap: int | None, kind: str) -> None:
    if extra is None or cap is None:
        return
    above = np.flatnonzero(extra > cap)
    if above.size:
        message = (
            f"{kind} {above[0]} has {extra[above[0]]:,} extra tokens, and a micro-batch has at most "
            f"cap_extra_tokens = {cap:,}; leave it out, or raise cap_extra_tokens"
        )
        raise InfeasibleError(message, code="sequence_too_long")
