"""Runs of elements that follow each other, or do not."""

import numpy as np
import pytest
import torch

from hydraulis.runtime.segments import pieces, region

FLAT = torch.arange(8)


def test_segments_that_follow_each_other_are_viewed_as_one() -> None:
    one = region(FLAT, np.array([[1, 2], [3, 1], [4, 3]]))
    assert torch.equal(one, FLAT[1:7])
    assert one.data_ptr() == FLAT[1:].data_ptr()
    assert len(region(FLAT, np.empty((0, 2), np.int64))) == 0


@pytest.mark.parametrize("segments", [[[0, 2], [3, 2]], [[0, 2], [4, 2], [2, 2], [6, 2]]])
def test_those_that_leave_a_gap_or_go_back_are_none(segments: list[list[int]]) -> None:
    with pytest.raises(AssertionError, match="in the order of its homes"):
        region(FLAT, np.array(segments))


def test_each_segment_is_paired_with_its_place_in_a_packed_buffer() -> None:
    packed = torch.zeros(4, dtype=FLAT.dtype)
    for of_flat, of_packed in pieces(FLAT, np.array([[6, 2], [1, 2]]), packed):
        of_packed.copy_(of_flat)
    assert packed.tolist() == [6, 7, 1, 2]
