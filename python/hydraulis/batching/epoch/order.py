"""The shuffled order of an epoch, computed at any position without the positions before it.

A permutation of `n` sequences takes no memory: a Feistel network permutes the numbers below the power of two
at or above `n`, and a number outside is permuted again until it is inside (cycle walking; Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", 2002). The order depends on the number of sequences, the seed and the
epoch alone: neither on the version of NumPy nor on the ranks.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_ROUNDS: Final = 8
_MASK: Final = (1 << 64) - 1
# Increment and multipliers of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
# Generators", 2014).
_INCREMENT: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


class EpochOrder:
    """The order of the sequences in one epoch.

    Args:
        num_sequences: Number of sequences, at least 1.
        seed: Seed of the permutations.
        epoch: Number of the epoch; each has another permutation.
        shuffle: Whether to permute; the identity otherwise.
    """

    def __init__(self, num_sequences: int, seed: int, epoch: int, *, shuffle: bool = True) -> None:
        bits = max(2, (num_sequences - 1).bit_length())
        self._num_sequences = num_sequences
        self._shuffle = shuffle
        self._right_bits = bits // 2
        self._left_bits = bits - self._right_bits
        key = _mixed(_mixed(seed & _MASK) ^ epoch)
        self._keys = [_mixed(key + turn) for turn in range(_ROUNDS)]

    def __call__(self, start: int, stop: int) -> Indices:
        """Return the sequences at the positions from `start` to before `stop`, int64 [stop - start]."""
        positions = np.arange(start, stop, dtype=np.uint64)
        if not self._shuffle:
            return positions.astype(np.int64)
        values = self._permuted(positions)
        outside = np.flatnonzero(values >= self._num_sequences)
        while outside.size:
            again = self._permuted(values[outside])
            values[outside] = again
            outside = outside[again >= self._num_sequences]
        return values.astype(np.int64)

    def _permuted(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Permute the numbers below the power of two: each round changes one half by the other."""
        left = values >> np.uint64(self._right_bits)
        right = values & np.uint64((1 << self._right_bits) - 1)
        for turn, key in enumerate(self._keys):
            if turn % 2:
                left ^= _hashed(right, key) >> np.uint64(64 - self._left_bits)
            else:
                right ^= _hashed(left, key) >> np.uint64(64 - self._right_bits)
        return (left << np.uint64(self._right_bits)) | right


def _mixed(value: int) -> int:
    """Return a number of SplitMix64's sequence."""
    value = (value + _INCREMENT) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _hashed(values: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finalizer to each value; arrays of NumPy wrap around without a warning."""
    mixed = (values + np.uint64(1)) * np.uint64(_INCREMENT) ^ np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return mixed ^ (mixed >> np.uint64(31))
