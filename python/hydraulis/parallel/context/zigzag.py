"""Cuts every sequence into chunks so that each of cp ranks has the same tokens and about the same attention.

A token attends to all before it, so equal runs are unequal work. A sequence is cut into 2 cp chunks, which
are taken in pairs: the first and the last, the second and the last but one, and so on. With equal chunks each
pair holds as many tokens as the next, and as many pairs of a query and a key (Llama 3's split,
arXiv:2407.21783, section 3.3.2).

Where 2 cp does not divide the length, or the sequence has fewer tokens than chunks, the first chunks hold one
token more than the others. So the pairs differ, and which rank takes which is chosen for each sequence of a
micro-batch anew: pairs of more tokens go to the ranks that have fewest so far, and among those of equal
tokens the one of most work goes to the rank of least. So the ranks' tokens differ by one at most, and not at
all where cp divides their number; their work differs by about as many keys as the longest sequence has
tokens, however many sequences there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby


@dataclass(frozen=True, slots=True)
class CutSequence:
    """The chunks of one sequence.

    Attributes:
        bounds: where its chunks begin, and its length: 2 cp + 1 ascending numbers. A chunk may be empty.
        pairs: by rank, the number of its pair of chunks; 0 is the outermost.
    """

    bounds: tuple[int, ...]
    pairs: tuple[int, ...]

    def front(self, rank: int) -> range:
        """Give the first chunk of a rank, as positions in the sequence."""
        pair = self.pairs[rank]
        return range(self.bounds[pair], self.bounds[pair + 1])

    def back(self, rank: int) -> range:
        """Give the second chunk of a rank, as positions in the sequence."""
        pair = self.pairs[rank]
        return range(self.bounds[-2 - pair], self.bounds[-1 - pair])


def zigzag_split(lengths: Sequence[int], cp: int) -> tuple[CutSequence, ...]:
    """Cut sequences of these lengths for `cp` ranks; the same on every rank."""
    balance = _Balance(cp)
    return tuple(balance.cut(length) for length in lengths)


class _Balance:
    """What the ranks have been given so far."""

    def __init__(self, cp: int) -> None:
        self._num_tokens = [0] * cp
        self._work = [0] * cp

    def cut(self, length: int) -> CutSequence:
        """Cut the next sequence, and give its pairs of chunks to the ranks that need them."""
        cp = len(self._work)
        bounds = _bounds(length, cp)
        num_tokens = [_sum_over_pair(bounds, pair, _count) for pair in range(cp)]
        work = [_sum_over_pair(bounds, pair, _seen) for pair in range(cp)]
        taking = self._matched(num_tokens, work)
        for rank, pair in enumerate(taking):
            self._num_tokens[rank] += num_tokens[pair]
            self._work[rank] += work[pair]
        return CutSequence(bounds, tuple(taking))

    def _matched(self, num_tokens: Sequence[int], work: Sequence[int]) -> list[int]:
        """Choose a pair for each rank."""
        cp = len(work)
        by_need = sorted(range(cp), key=lambda rank: (self._num_tokens[rank], self._work[rank], rank))
        by_size = sorted(range(cp), key=lambda pair: (-num_tokens[pair], -work[pair], pair))
        taking = [0] * cp
        ranks = iter(by_need)
        for _, pairs in groupby(by_size, key=lambda pair: num_tokens[pair]):
            alike = list(pairs)
            takers = sorted((next(ranks) for _ in alike), key=lambda rank: (self._work[rank], rank))
            for rank, pair in zip(takers, alike, strict=True):
                taking[rank] = pair
        return taking


def _bounds(length: int, cp: int) -> tuple[int, ...]:
    """Cut into 2 cp chunks; what is left over goes to the front chunks, then to the outermost of the back."""
    size, left = divmod(length, 2 * cp)
    sizes = [size] * (2 * cp)
    for chunk in [*range(cp), *range(2 * cp - 1, cp - 1, -1)][:left]:
        sizes[chunk] += 1
    return (0, *accumulate(sizes))


def _sum_over_pair(bounds: Sequence[int], pair: int, measure: Callable[[int], int]) -> int:
    """Sum what grows from the start to the end of each chunk of a pair."""
    front = measure(bounds[pair + 1]) - measure(bounds[pair])
    return front + measure(bounds[-1 - pair]) - measure(bounds[-2 - pair])


def _count(position: int) -> int:
    return position


def _seen(position: int) -> int:
    """Count the keys that the queries before a position see: 1, 2, and so on."""
    return position * (position + 1) // 2
