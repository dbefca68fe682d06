"""In which order the sequences of an epoch come: all of them shuffled, or sources mixed by weight.

Both depend on the seed and the epoch alone. Permutations are those of NumPy's default generator, which a new
NumPy version may change.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SequenceIndices = npt.NDArray[np.int64]

# Beside the seed, so that the order within a source is independent of the order of the epoch.
_WITHIN = 0x4D4958


class Shuffle:
    """Each sequence once per epoch.

    Args:
        num_sequences: there are.
        seed: fixes the permutations.
    """

    def __init__(self, num_sequences: int, seed: int) -> None:
        self._num_sequences = num_sequences
        self._seed = seed

    def __call__(self, epoch: int) -> SequenceIndices:
        """Give the sequences of an epoch in their order."""
        return np.random.default_rng([self._seed, epoch]).permutation(self._num_sequences)


class Mixture:
    """Sources in proportion to their weights, counted in tokens.

    An epoch holds about as many tokens as all sources together, of each source its share. A source whose
    share is larger than itself repeats, one whose share is smaller takes several epochs: either goes through
    a permutation of all its sequences, and then through the next, so that no sequence comes twice more often
    than another.

    Args:
        bounds: where the sequences of each source start, and behind the last one how many there are.
        lengths: tokens of each sequence.
        weights: by source.
        seed: fixes the permutations.
    """

    def __init__(
        self, bounds: npt.NDArray[np.int64], lengths: SequenceIndices, weights: Sequence[float], seed: int
    ) -> None:
        tokens = np.add.reduceat(lengths, bounds[:-1], dtype=np.int64)
        share = np.array(weights, dtype=np.float64) / sum(weights)
        self._first = bounds[:-1]
        self._sizes = np.diff(bounds)
        self._per_epoch = share * float(tokens.sum()) / tokens * self._sizes
        self._seed = seed

    def __call__(self, epoch: int) -> SequenceIndices:
        """Give the sequences of an epoch in their order; a sequence may come more than once."""
        parts = [self._of_source(source, epoch) for source in range(len(self._sizes))]
        together = np.concatenate(parts)
        return together[np.random.default_rng([self._seed, epoch]).permutation(len(together))]

    def _of_source(self, source: int, epoch: int) -> SequenceIndices:
        """Give what a source adds to an epoch: the next places of its endless stream of permutations."""
        size = int(self._sizes[source])
        start, stop = (int(turn * self._per_epoch[source]) for turn in (epoch, epoch + 1))
        rounds = range(start // size, -(-stop // size))
        if not rounds:
            return np.zeros(0, dtype=np.int64)
        stream = np.concatenate([self._round(source, number, size) for number in rounds])
        before = rounds.start * size
        places: SequenceIndices = self._first[source] + stream[start - before : stop - before]
        return places

    def _round(self, source: int, number: int, size: int) -> SequenceIndices:
        return np.random.default_rng([self._seed, _WITHIN, source, number]).permutation(size)
