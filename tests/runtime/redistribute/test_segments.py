"""Segments of flat buffers, in order and out of order."""

import numpy as np
import pytest
import torch

from hydraulis.runtime.redistribute.segments import are_in_order, pieces, put_back, put_in_order, region
from hydraulis.runtime.redistribute.staging import Staging

FLAT = torch.arange(8)


@pytest.mark.parametrize("segments", [[[1, 2], [3, 1], [4, 3]], [[4, 3], [1, 2], [3, 1]]])
def test_segments_that_are_one_piece_together_are_viewed_as_one(segments: list[list[int]]) -> None:
    one = region(FLAT, np.array(segments))
    assert torch.equal(one, FLAT[1:7])
    assert one.data_ptr() == FLAT[1:].data_ptr()
    assert len(region(FLAT, np.empty((0, 2), np.int64))) == 0


@pytest.mark.parametrize("segments", [[[0, 2], [3, 2]], [[4, 2], [0, 2]]])
def test_segments_with_a_gap_have_no_view(segments: list[list[int]]) -> None:
    with pytest.raises(AssertionError, match="one piece"):
        region(FLAT, np.array(segments))


# What is packed may be narrower than the room for it.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_region_is_put_in_the_order_of_its_segments_and_back(dtype: torch.dtype) -> None:
    segments = np.array([[4, 2], [1, 1], [2, 2]])
    flat, room = FLAT.to(dtype), Staging(torch.empty(0))
    put_in_order(flat, segments, room)
    assert flat.tolist() == [0, 4, 5, 1, 2, 3, 6, 7]
    put_back(flat, segments, room)
    assert flat.tolist() == FLAT.tolist()
    assert len(room.room) == 5


def test_segments_are_in_order_if_each_begins_where_the_last_one_ends() -> None:
    assert are_in_order(np.array([[1, 2], [3, 1], [4, 3]]))
    assert are_in_order(np.empty((0, 2), np.int64))
    assert not are_in_order(np.array([[4, 3], [1, 2], [3, 1]]))


def test_each_segment_is_paired_with_its_place_in_a_packed_buffer() -> None:
    packed = torch.zeros(4, dtype=FLAT.dtype)
    for of_flat, of_packed in pieces(FLAT, np.array([[6, 2], [1, 2]]), packed):
        of_packed.copy_(of_flat)
    assert packed.tolist() == [6, 7, 1, 2]
