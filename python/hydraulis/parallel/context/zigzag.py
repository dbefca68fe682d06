"""The zigzag split: every context rank gets the same number of tokens and nearly the same attention work.

A token attends to all earlier tokens, so runs of equal length have unequal work. Each sequence is cut into
2 cp chunks, which form pairs: the first and the last, the second and the last but one, and so on. With equal
chunks all pairs have the same number of tokens and of query-key pairs (Llama 3's split, arXiv:2407.21783,
section 3.3.2).

If 2 cp does not divide the length, some chunks have one token more, and the pairs differ. The pairs of each
sequence are therefore assigned by the load so far: pairs with more tokens go to the ranks with the fewest
tokens, and among pairs of equal tokens the pair with most work goes to the rank with least work. The ranks'
tokens differ by at most 1, and are equal if cp divides the total. The ranks' work differs by about as many
keys as the longest sequence has tokens, for any number of sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby


@dataclass(frozen=True, slots=True)
class CutSequence:
    """The chunks of one sequence.

    Attributes:
        bounds: Starts of the chunks and the length, 2 cp + 1 ascending numbers; a chunk may be empty.
        pairs: Index of each rank's pair of chunks [cp]; 0 is the outermost pair.
    """

    bounds: tuple[int, ...]
    pairs: tuple[int, ...]

    def front(self, rank: int) -> range:
        """Return the positions of a rank's first chunk."""
        pair = self.pairs[rank]
        return range(self.bounds[pair], self.bounds[pair + 1])

    def back(self, rank: int) -> range:
        """Return the positions of a rank's second chunk."""
        pair = self.pairs[rank]
        return range(self.bounds[-2 - pair], self.bounds[-1 - pair])


def zigzag_split(lengths: Sequence[int], cp: int) -> tuple[CutSequence, ...]:
    """Cut sequences of these lengths for `cp` ranks, with the same result on every rank."""
    loads = _RankLoads(cp)
    return tuple(loads.cut(length) for length in lengths)


class _RankLoads:
    """Tokens and work of each rank so far."""

    def __init__(self, cp: int) -> None:
        self._num_tokens = [0] * cp
        self._work = [0] * cp

    def cut(self, length: int) -> CutSequence:
        """Cut the next sequence and assign its pairs of chunks to the ranks."""
        cp = len(self._work)
        bounds = _bounds(length, cp)
        num_tokens = [_sum_over_pair(bounds, pair, _count) for pair in range(cp)]
        work = [_sum_over_pair(bounds, pair, _visible_keys) for pair in range(cp)]
        assigned = self._assigned(num_tokens, work)
        for rank, pair in enumerate(assigned):
            self._num_tokens[rank] += num_tokens[pair]
            self._work[rank] += work[pair]
        return CutSequence(bounds, tuple(assigned))

    def _assigned(self, num_tokens: Sequence[int], work: Sequence[int]) -> list[int]:
        """Return a pair of chunks for each rank."""
        cp = len(work)
        by_need = sorted(range(cp), key=lambda rank: (self._num_tokens[rank], self._work[rank], rank))
        by_size = sorted(range(cp), key=lambda pair: (-num_tokens[pair], -work[pair], pair))
        assigned = [0] * cp
        ranks = iter(by_need)
        for _, pairs in groupby(by_size, key=lambda pair: num_tokens[pair]):
            equal_pairs = list(pairs)
            receivers = sorted((next(ranks) for _ in equal_pairs), key=lambda rank: (self._work[rank], rank))
            for rank, pair in zip(receivers, equal_pairs, strict=True):
                assigned[rank] = pair
        return assigned


def _bounds(length: int, cp: int) -> tuple[int, ...]:
    """Cut into 2 cp chunks; surplus tokens go to the front chunks, then to the outermost back chunks."""
    size, left = divmod(length, 2 * cp)
    sizes = [size] * (2 * cp)
    for chunk in [*range(cp), *range(2 * cp - 1, cp - 1, -1)][:left]:
        sizes[chunk] += 1
    return (0, *accumulate(sizes))


def _sum_over_pair(bounds: Sequence[int], pair: int, measure: Callable[[int], int]) -> int:
    """Sum the increase of `measure` over both chunks of a pair."""
    front = measure(bounds[pair + 1]) - measure(bounds[pair])
    return front + measure(bounds[-1 - pair]) - measure(bounds[-2 - pair])


def _count(position: int) -> int:
    return position


def _visible_keys(position: int) -> int:
    """Return the number of visible keys of all queries before a position: 1 + 2 + ... + position."""
    return position * (position + 1) // 2
