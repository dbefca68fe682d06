"""Sequences with common prefixes as trees: each shared token is stored and computed once.

The tokens of a forest are in depth-first order, so the descendants of a token follow it without a gap. A
token attends to its ancestors and itself: token `q` sees token `k` if `k <= q < end[k]`, where `end[k]` is
the first token after the descendants of `k`. So one number for each token describes the mask.

Legend: U distinct tokens of all trees, n sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hydraulis.batching.epoch.order import Indices
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, eq=False)
class PrefixForest:
    """The distinct tokens of sequences, each prefix once.

    Attributes:
        tokens: Tokens in depth-first order, int64 [U].
        positions: Position of each token in its sequences, int64 [U].
        parents: Index of the token before it; -1 for the first token of a sequence, int64 [U].
        ends: Index after the last descendant of each token, int64 [U].
        paths: Indices of each sequence's tokens, in the order of the sequences, int64.

    >>> forest = make_forest([[1, 2, 3], [1, 2, 4, 5], [7]])
    >>> forest.tokens.tolist(), forest.positions.tolist()
    ([1, 2, 3, 4, 5, 7], [0, 1, 2, 2, 3, 0])
    >>> forest.ends.tolist(), [path.tolist() for path in forest.paths]
    ([5, 5, 3, 5, 5, 6], [[0, 1, 2], [0, 1, 3, 4], [5]])
    """

    tokens: Indices
    positions: Indices
    parents: Indices
    ends: Indices
    paths: list[Indices]

    @property
    def squares(self) -> int:
        """The work of attention in squared tokens; of one sequence of `s` tokens alone it is `s^2`."""
        return int((2 * self.positions + 1).sum())

    def add_up(self, values: Sequence[npt.ArrayLike]) -> npt.NDArray[np.float64]:
        """Add values of the sequences' tokens on the forest's tokens, float64 [U].

        Args:
            values: Values of each sequence, one for each of its tokens.
        """
        total = np.zeros(len(self.tokens))
        for path, one in zip(self.paths, values, strict=True):
            total[path] += np.asarray(one, dtype=np.float64)
        return total


def make_forest(sequences: Sequence[npt.ArrayLike]) -> PrefixForest:
    """Merge the common prefixes of sequences; each tree begins with another token.

    Args:
        sequences: Tokens of each sequence, at least one each.

    Raises:
        InvalidInputError: A sequence is empty (code `micro_batch_invalid`).
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    for index, array in enumerate(arrays):
        if not array.size:
            message = f"sequence {index} has 0 tokens and must have at least 1; leave it out"
            raise InvalidInputError(message, code="micro_batch_invalid")
    # In lexicographic order a sequence shares its longest prefix with the one before it.
    order = sorted(range(len(arrays)), key=lambda index: (arrays[index].tolist(), index))
    size = sum(map(len, arrays))
    tokens, positions, parents, ends = (np.zeros(size, dtype=np.int64) for _ in range(4))
    paths: list[Indices] = [np.zeros(0, dtype=np.int64)] * len(arrays)
    path = np.zeros(0, dtype=np.int64)
    before = np.zeros(0, dtype=np.int64)
    count = 0
    for index in order:
        array = arrays[index]
        common = _common_prefix(before, array)
        ends[path[common:]] = count
        added = np.arange(count, count + len(array) - common)
        tokens[added] = array[common:]
        positions[added] = np.arange(common, len(array))
        path = np.concatenate([path[:common], added])
        parents[added] = np.concatenate([[-1], path])[common:-1]
        paths[index], before = path, array
        count += len(added)
    ends[path] = count
    return PrefixForest(tokens[:count], positions[:count], parents[:count], ends[:count], paths)


def _common_prefix(one: Indices, other: Indices) -> int:
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if differing.size else size
