"""Which queries of a rank meet which keys of another one, when sequences are cut in zigzag.

Of each sequence a rank has a front and a back chunk. The rank whose pair of chunks is the outer one has the
earlier front and the later back. So a rank sees of an outer one its front chunk, with all queries; of an
inner one both chunks, with the queries of its own back chunk; and itself causally. Each meeting is one call
of a kernel, whole segments against whole segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads
from hydraulis.model.on_device import on_device
from hydraulis.model.segments import Segments
from hydraulis.parallel.context.zigzag import CutSequence


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The queries and the keys of one meeting.

    Attributes:
        mask: of the queries and keys that meet.
        queries: int64, which of this rank's tokens they are; None for all.
        keys: int64, which of the other rank's tokens; None for all.
    """

    mask: AttentionMask
    queries: Tensor | None
    keys: Tensor | None

    @property
    def is_empty(self) -> bool:
        """Whether no query meets any key."""
        pairs = zip(self.mask.queries.lengths, self.mask.keys.lengths, strict=True)
        return not any(queries and keys for queries, keys in pairs)

    def of_queries(self, x: Tensor) -> Tensor:
        """Take the rows of the queries that meet."""
        return x if self.queries is None else x[self.queries]

    def of_keys(self, x: Tensor) -> Tensor:
        """Take the rows of the keys that are met."""
        return x if self.keys is None else x[self.keys]

    def heads(self, q_tND: Tensor, key_value_2tKD: Tensor) -> Heads:
        """Take what meets of this rank's queries and the other's keys and values."""
        k_tKD, v_tKD = key_value_2tKD
        return Heads(self.of_queries(q_tND), self.of_keys(k_tKD), self.of_keys(v_tKD))

    def attended(self, attended: Attended) -> Attended:
        """Take the outputs of the queries that meet."""
        return Attended(*(self.of_queries(x) for x in attended))


def ring_meetings(
    split: Sequence[CutSequence], rank: int, cp: int, device: torch.device | str
) -> tuple[Meeting, ...]:
    """List the meetings of a rank in the order in which keys come round: its own, then the rank's before it.

    Args:
        split: of the micro-batch; a rank's tokens lie sequence by sequence, the front chunk first.
        rank: of this one among the context ranks.
        cp: the context ranks.
        device: of the tokens.
    """
    own = _places(split, rank)
    segments = Segments.from_lengths([end - start for start, _, end in own], device)
    meetings = [Meeting(AttentionMask(segments, segments, causal=True), None, None)]
    for other in ((rank - step) % cp for step in range(1, cp)):
        theirs = _places(split, other)
        queries, keys = [], []
        for cut, (start, middle, end), (first, inner, last) in zip(split, own, theirs, strict=True):
            is_outer = cut.pairs[other] < cut.pairs[rank]
            queries.append(range(start if is_outer else middle, end))
            keys.append(range(first, inner if is_outer else last))
        mask = AttentionMask(_segments(queries, device), _segments(keys, device), causal=False)
        meetings.append(Meeting(mask, on_device(_index(queries), device), on_device(_index(keys), device)))
    return tuple(meetings)


def _places(split: Sequence[CutSequence], rank: int) -> list[tuple[int, int, int]]:
    """Say where among a rank's tokens each sequence's front chunk begins, where its back one, and the end."""
    places, end = [], 0
    for cut in split:
        start, middle = end, end + len(cut.front(rank))
        end = middle + len(cut.back(rank))
        places.append((start, middle, end))
    return places


def _segments(runs: Sequence[range], device: torch.device | str) -> Segments:
    return Segments.from_lengths([len(run) for run in runs], device)


def _index(runs: Sequence[range]) -> Tensor:
    return torch.cat([torch.arange(run.start, run.stop) for run in runs])
