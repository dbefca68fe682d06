"""Runs of tokens that lie end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from hydraulis.model.on_device import on_device


@dataclass(frozen=True, eq=False)
class Segments:
    """Runs of tokens that lie end to end, as the host and as the device need them.

    Attributes:
        lengths: tokens of each segment, in order; a segment may be empty.
        boundary: int32, on the device of the tokens: where each segment begins, and the end of the last one.
    """

    lengths: tuple[int, ...]
    boundary: Tensor

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: torch.device | str) -> Self:
        """Lay segments of these lengths end to end; `boundary` goes to `device`."""
        boundary = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return cls(lengths=tuple(lengths), boundary=on_device(boundary, device))

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all segments together."""
        return sum(self.lengths)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest segment."""
        return max(self.lengths)
