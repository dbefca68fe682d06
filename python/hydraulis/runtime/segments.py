"""Runs of elements in flat buffers, as the core's transfers list them."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def region(flat: Tensor, segments: NDArray[np.int64]) -> Tensor:
    """View segments that follow each other without a gap as one; of no segments nothing.

    Args:
        flat: a flat buffer.
        segments: int64 of shape (segments, 2), offset and elements.
    """
    if not len(segments):
        return flat[:0]
    start, end = int(segments[0, 0]), int(segments[-1].sum())
    follow = segments[1:, 0] == segments[:-1].sum(axis=1)
    assert follow.all(), "what a rank holds of a bucket lies in one piece, in the order of its homes"
    return flat[start:end]


def pieces(flat: Tensor, segments: NDArray[np.int64], packed: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pair each segment of a flat buffer with its place in a packed one.

    Args:
        flat: a flat buffer.
        segments: int64 of shape (segments, 2), offset and elements.
        packed: has the segments' elements one after another.
    """
    pairs = []
    end = 0
    for offset, elements in segments.tolist():
        pairs.append((flat[offset : offset + elements], packed[end : end + elements]))
        end += elements
    return pairs
