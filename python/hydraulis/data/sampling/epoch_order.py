"""The order of an epoch's sequences: shuffled, or a mixture of sources by weight.

Both depend on the seed and the epoch alone. The permutations are those of NumPy's default generator, which a
new version of NumPy may change.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SequenceIndices = npt.NDArray[np.int64]

# Added to the seed, so that the order within a source is independent of the order of the epoch.
_WITHIN = 0x4D4958
# Floats may state a whole number of sequences a little too small, by some 1e-15 of it.
_ROUNDING = 1e-12


class Shuffle:
    """Each sequence once per epoch.

    Args:
        num_sequences: Number of sequences.
        seed: Seed of the permutations.
    """

    def __init__(self, num_sequences: int, seed: int) -> None:
        self._num_sequences = num_sequences
        self._seed = seed

    def __call__(self, epoch: int) -> SequenceIndices:
        """Return the sequences of an epoch in order."""
        return np.random.default_rng([self._seed, epoch]).permutation(self._num_sequences)


class Mixture:
    """Sources in proportion to their weights, measured in tokens.

    An epoch has about as many tokens as all sources together. A source with a larger share than its size
    repeats within an epoch, and a source with a smaller share takes several epochs. Each source is an endless
    stream of its own permutations, so at the end of an epoch the occurrences of two of its sequences differ
    by at most one.

    Args:
        bounds: First sequence of each source, and the number of sequences at the end, int64 [sources + 1].
        lengths: Tokens of each sequence, int64 [n].
        weights: Weight of each source.
        seed: Seed of the permutations.
    """

    def __init__(
        self, bounds: npt.NDArray[np.int64], lengths: SequenceIndices, weights: Sequence[float], seed: int
    ) -> None:
        tokens = np.add.reduceat(lengths, bounds[:-1], dtype=np.int64)
        # The sum of the greatest floats is infinite.
        relative = np.array(weights, dtype=np.float64) / max(weights)
        share = relative / relative.sum()
        self._first = bounds[:-1]
        self._sizes = np.diff(bounds)
        self._per_epoch = share * float(tokens.sum()) / tokens * self._sizes
        self._seed = seed

    def __call__(self, epoch: int) -> SequenceIndices:
        """Return the sequences of an epoch in order; a sequence may occur more than once."""
        parts = [self._of_source(source, epoch) for source in range(len(self._sizes))]
        together = np.concatenate(parts)
        return together[np.random.default_rng([self._seed, epoch]).permutation(len(together))]

    def _of_source(self, source: int, epoch: int) -> SequenceIndices:
        """Return the next part of a source's endless stream of permutations."""
        size = int(self._sizes[source])
        per_epoch = float(self._per_epoch[source]) * (1 + _ROUNDING)
        start, stop = (int(turn * per_epoch) for turn in (epoch, epoch + 1))
        rounds = range(start // size, -(-stop // size))
        if not rounds:
            return np.zeros(0, dtype=np.int64)
        stream = np.concatenate([self._round(source, number, size) for number in rounds])
        before = rounds.start * size
        places: SequenceIndices = self._first[source] + stream[start - before : stop - before]
        return places

    def _round(self, source: int, number: int, size: int) -> SequenceIndices:
        return np.random.default_rng([self._seed, _WITHIN, source, number]).permutation(size)
