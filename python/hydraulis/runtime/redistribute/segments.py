"""Segments of flat buffers, as the core's transfers list them."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydraulis.runtime.redistribute.staging import Staging

# Ranks from which on the sum of their contributions is made apart from the buffer: it takes memory for three
# of them, a tenth of what they take themselves.
_MANY = 32


def region(flat: Tensor, segments: NDArray[np.int64]) -> Tensor:
    """View segments that together are one piece of a buffer, in any order; no segments give an empty view.

    Args:
        flat: Flat buffer.
        segments: Offset and number of elements of each segment, int64 [segments, 2].
    """
    if not len(segments):
        return flat[:0]
    start, end = int(segments[:, 0].min()), int(segments.sum(axis=1).max())
    assert segments[:, 1].sum() == end - start, "a bucket is one piece of the local shard"
    return flat[start:end]


def pieces(flat: Tensor, segments: NDArray[np.int64], packed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each segment of a buffer with its elements in a packed one.

    Segments that follow each other in the buffer too are one pair, so that many owners' slices take one
    operation.

    Args:
        flat: Flat buffer.
        segments: Offset and number of elements of each segment, int64 [segments, 2].
        packed: Elements of the segments, one segment after another.
    """
    if not len(segments):
        return
    gaps = segments[1:, 0] != segments[:-1].sum(axis=1)
    firsts = np.concatenate(([0], np.flatnonzero(gaps) + 1))
    sizes = np.add.reduceat(segments[:, 1], firsts)
    offsets, elements = segments[firsts, 0].tolist(), sizes.tolist()
    for offset, size, of_packed in zip(
        offsets, elements, packed[: sum(elements)].split(elements), strict=True
    ):
        yield flat[offset : offset + size], of_packed


def pack(flat: Tensor, segments: NDArray[np.int64], packed: Tensor) -> None:
    """Copy segments of a buffer one after another into a packed one, by few launches of a kernel.

    Args:
        flat: Flat buffer.
        segments: Offset and number of elements of each segment, int64 [segments, 2].
        packed: Memory for the elements, in this or another dtype.
    """
    count = repetitions(segments)
    once = segments[: len(segments) // count]
    _copy([(place, values) for values, place in pieces(flat, once, packed)])
    if count > 1:
        rows = packed[: int(segments[:, 1].sum())].view(count, -1)
        rows[1:] = rows[0]


def unpack(packed: Tensor, flat: Tensor, segments: NDArray[np.int64]) -> None:
    """Copy packed elements back to their segments, which do not overlap."""
    _copy(list(pieces(flat, segments, packed)))


def add_packed(packed: Tensor, flat: Tensor, segments: NDArray[np.int64]) -> None:
    """Add packed contributions to their segments; where segments overlap, in the order of the segments.

    Segments of ascending offsets do not overlap, so a few launches of a kernel add them all: those of a rank.
    Where many ranks contribute to the same segments, one kernel adds up their contributions on CUDA, in an
    order that depends on the shape alone.

    Args:
        packed: Contributions, one segment after another, in the dtype of the buffer.
        flat: Flat buffer.
        segments: Offset and number of elements of each segment, int64 [segments, 2].
    """
    count = repetitions(segments)
    if count >= _MANY:
        rows = packed[: int(segments[:, 1].sum())].view(count, -1)
        once = segments[: len(segments) // count]
        total = rows.new_empty(rows.shape[1])
        pack(flat, once, total)
        unpack(_sum(total, rows), flat, once)
        return
    apart: list[tuple[Tensor, Tensor]] = []
    end = 0
    for place, values in pieces(flat, segments, packed):
        start = int(place.storage_offset())
        if apart and start < end:
            _add(apart)
            apart = []
        apart.append((place, values))
        end = start + len(place)
    _add(apart)


def repetitions(segments: NDArray[np.int64]) -> int:
    """Return how many times the segments are one list after another; 1 for other segments.

    Each node contributes to the same segments of an owner, and receives the same.

    Args:
        segments: Offset and number of elements of each segment, int64 [segments, 2].
    """
    again = np.flatnonzero((segments[1:] == segments[:1]).all(axis=1))
    if not len(again):
        return 1
    period = int(again[0]) + 1
    whole = len(segments) % period == 0 and bool((segments[period:] == segments[:-period]).all())
    once = segments[:period]
    are_apart = bool((once[1:, 0] >= once[:-1].sum(axis=1)).all())
    return len(segments) // period if whole and are_apart else 1


def _sum(total: Tensor, rows: Tensor) -> Tensor:
    """Add rows to one; on the CPU one after another, by numpy, whose calls take a third of the time."""
    if rows.device.type == "cuda":
        return total + rows.sum(dim=0)
    sums = total.numpy()
    for row in rows.numpy():
        sums += row
    return total


def _add(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Add the second tensor of each pair to the first; the first ones do not overlap."""
    if len(pairs) == 1:
        # In one launch; a kernel for lists takes one for each 20 million elements.
        pairs[0][0].add_(pairs[0][1])
    elif pairs:
        places, values = zip(*pairs, strict=True)
        torch._foreach_add_(places, values)


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first."""
    if len(pairs) == 1:
        pairs[0][0].copy_(pairs[0][1])
    elif pairs:
        places, values = zip(*pairs, strict=True)
        torch._foreach_copy_(places, values)


def are_in_order(segments: NDArray[np.int64]) -> bool:
    """Whether each segment starts where the one before it ends."""
    return bool((segments[1:, 0] == segments[:-1].sum(axis=1)).all())


def put_in_order(flat: Tensor, segments: NDArray[np.int64], staging: Staging) -> None:
    """Permute a region in place, so that its segments follow each other as listed.

    Args:
        flat: Flat buffer.
        segments: Offset and number of elements of each segment, int64 [segments, 2], together one piece.
        staging: Memory for as many elements, of the buffer's dtype or a wider one.
    """
    piece = region(flat, segments)
    packed = staging.take(len(piece), flat.dtype)
    pack(flat, segments, packed)
    piece.copy_(packed)


def put_back(flat: Tensor, segments: NDArray[np.int64], staging: Staging) -> None:
    """Permute a region whose elements are in the order of the segments back to the segments' places."""
    piece = region(flat, segments)
    packed = staging.take(len(piece), flat.dtype)
    packed.copy_(piece)
    unpack(packed, flat, segments)
