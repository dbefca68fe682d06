"""Runs of elements in flat buffers, as the core's transfers list them."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hydraulis.runtime.redistribute.staging import Staging


def region(flat: Tensor, segments: NDArray[np.int64]) -> Tensor:
    """View segments that are one piece together as one, in whatever order they are; of no segments nothing.

    Args:
        flat: a flat buffer.
        segments: int64 of shape (segments, 2), offset and elements.
    """
    if not len(segments):
        return flat[:0]
    start, end = int(segments[:, 0].min()), int(segments.sum(axis=1).max())
    assert segments[:, 1].sum() == end - start, "what a rank holds of a bucket lies in one piece"
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


def are_in_order(segments: NDArray[np.int64]) -> bool:
    """Whether each segment begins where the one before it ends."""
    return bool((segments[1:, 0] == segments[:-1].sum(axis=1)).all())


def put_in_order(flat: Tensor, segments: NDArray[np.int64], room: Staging) -> None:
    """Move the segments of a region there, so that they follow each other as they are listed.

    Args:
        flat: a flat buffer.
        segments: int64 of shape (segments, 2), offset and elements, one piece together.
        room: for as many elements, of the type of the buffer or a wider one.
    """
    piece = region(flat, segments)
    packed = room.take(len(piece), flat.dtype)
    for values, place in pieces(flat, segments, packed):
        place.copy_(values)
    piece.copy_(packed)


def put_back(flat: Tensor, segments: NDArray[np.int64], room: Staging) -> None:
    """Move what lies in a region in the order of its segments to where they are: `put_in_order` undone."""
    piece = region(flat, segments)
    packed = room.take(len(piece), flat.dtype)
    packed.copy_(piece)
    for place, values in pieces(flat, segments, packed):
        place.copy_(values)
