"""The steps of ring attention over sequences in the zigzag split, each with its queries and keys.

Of each sequence a rank has a front chunk and a back chunk. An *outer* rank's chunks are closer to the ends of
the sequence than an *inner* rank's: its front chunk is earlier, and its back chunk is later. At a step, a
rank attends

- to an outer rank's front chunk with all its queries;
- to both chunks of an inner rank with the queries of its own back chunk;
- to its own keys causally.

Each step is one call of a kernel, with whole segments of queries and keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads, Segments
from hydraulis.model.tensors import to_device
from hydraulis.parallel.context.zigzag import CutSequence


@dataclass(frozen=True, slots=True, eq=False)
class RingStep:
    """The queries and keys of one step.

    Attributes:
        mask: Mask of the step's queries and keys.
        queries: Indices of the queries among this rank's tokens, int64; None for all.
        keys: Indices of the keys among the other rank's tokens, int64; None for all.
    """

    mask: AttentionMask
    queries: Tensor | None
    keys: Tensor | None

    @property
    def is_empty(self) -> bool:
        """Whether no query sees a key."""
        pairs = zip(self.mask.queries.lengths, self.mask.keys.lengths, strict=True)
        return not any(queries and keys for queries, keys in pairs)

    def select_queries(self, x: Tensor) -> Tensor:
        """Return the rows of the step's queries."""
        return x if self.queries is None else x[self.queries]

    def select_keys(self, x: Tensor) -> Tensor:
        """Return the rows of the step's keys."""
        return x if self.keys is None else x[self.keys]

    def heads(self, q_tND: Tensor, key_value_2tKD: Tensor) -> Heads:
        """Return the step's rows of this rank's queries and of the other rank's keys and values."""
        k_tKD, v_tKD = key_value_2tKD
        return Heads(self.select_queries(q_tND), self.select_keys(k_tKD), self.select_keys(v_tKD))

    def attended(self, attended: Attended) -> Attended:
        """Return the attention results of the step's queries."""
        return Attended(*(self.select_queries(x) for x in attended))


def ring_steps(
    split: Sequence[CutSequence], rank: int, cp: int, device: torch.device | str
) -> tuple[RingStep, ...]:
    """List the steps of a rank in the order of the arriving keys: its own, then those of the ranks before it.

    Args:
        split: Split of the micro-batch; a rank's tokens are ordered by sequence, the front chunk first.
        rank: Index of this rank in the context group.
        cp: Number of context ranks.
        device: Device of the tokens.
    """
    own = _chunk_bounds(split, rank)
    segments = Segments.from_lengths([end - start for start, _, end in own], device)
    steps = [RingStep(AttentionMask(segments, segments, causal=True), None, None)]
    for other in ((rank - distance) % cp for distance in range(1, cp)):
        theirs = _chunk_bounds(split, other)
        queries, keys = [], []
        for cut, (start, middle, end), (first, inner, last) in zip(split, own, theirs, strict=True):
            is_outer = cut.pairs[other] < cut.pairs[rank]
            queries.append(range(start if is_outer else middle, end))
            keys.append(range(first, inner if is_outer else last))
        mask = AttentionMask(_segments(queries, device), _segments(keys, device), causal=False)
        steps.append(RingStep(mask, to_device(_index(queries), device), to_device(_index(keys), device)))
    return tuple(steps)


def _chunk_bounds(split: Sequence[CutSequence], rank: int) -> list[tuple[int, int, int]]:
    """Return each sequence's bounds among a rank's tokens: start, start of the back chunk, end."""
    bounds, end = [], 0
    for cut in split:
        start, middle = end, end + len(cut.front(rank))
        end = middle + len(cut.back(rank))
        bounds.append((start, middle, end))
    return bounds


def _segments(runs: Sequence[range], device: torch.device | str) -> Segments:
    return Segments.from_lengths([len(run) for run in runs], device)


def _index(runs: Sequence[range]) -> Tensor:
    return torch.cat([torch.arange(run.start, run.stop) for run in runs])
