"""Segments of flat buffers, in order and out of order."""

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from hydraulis.runtime.redistribute.segments import (
    add_packed,
    are_in_order,
    pack,
    pieces,
    put_back,
    put_in_order,
    region,
    repetitions,
    unpack,
)
from hydraulis.runtime.redistribute.staging import Staging
from model.operations import Operations

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_segments_are_packed_and_unpacked_in_another_dtype_too(dtype: torch.dtype) -> None:
    segments = np.array([[6, 2], [1, 0], [1, 2]])
    packed, flat = torch.zeros(4, dtype=dtype), torch.zeros(8)
    pack(FLAT.float(), segments, packed)
    assert packed.tolist() == [6, 7, 1, 2]
    unpack(packed, flat, segments)
    assert flat.tolist() == [0, 1, 2, 0, 0, 0, 6, 7]
    pack(flat, np.empty((0, 2), np.int64), packed[:0])


def test_contributions_to_one_place_are_added_in_the_order_of_ranks() -> None:
    # 1e8 + 1 rounds to 1e8 in float32, so only this order gives 0 in the second place.
    segments = np.array([[1, 1], [3, 2], [1, 2], [0, 2]])
    flat = torch.tensor([0.5, 1e8, 0.0, 0.0, 0.0])
    add_packed(torch.tensor([1.0, 3.0, 4.0, -1e8, 2.0, 0.25, 0.0]), flat, segments)
    assert flat.tolist() == [0.75, 0.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("segments", "count"),
    [
        ([[1, 2]] * 4, 4),
        ([[0, 1], [3, 2]] * 3, 3),
        ([[0, 1], [3, 2], [0, 1]], 1),
        ([[0, 1], [3, 2], [0, 1], [3, 3]], 1),
        ([[3, 2], [0, 1]] * 2, 1),
        ([[0, 2], [1, 2]] * 2, 1),
        ([[0, 1], [3, 2]], 1),
        ([[2, 1]], 1),
    ],
)
def test_repeated_lists_of_apart_segments_are_found(segments: list[list[int]], count: int) -> None:
    assert repetitions(np.array(segments)) == count
    assert repetitions(np.empty((0, 2), np.int64)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contributions_of_many_ranks_to_the_same_segments_have_the_same_sum_to_the_bit(
    dtype: torch.dtype,
) -> None:
    once, count = np.array([[1, 2], [4, 1], [6, 2]]), 300
    packed = torch.randn(count * 5, dtype=dtype) * torch.logspace(-6, 6, count * 5, dtype=dtype)
    flat = torch.randn(9, dtype=dtype)
    expected = flat.clone()
    places = [1, 2, 4, 6, 7]
    for row in packed.view(count, 5):
        for place, value in zip(places, row, strict=True):
            expected[place] += value
    add_packed(packed, flat, np.tile(once, (count, 1)))
    assert torch.equal(flat, expected)


def test_on_cuda_the_contributions_of_many_ranks_are_one_sum() -> None:
    segments = np.tile(np.array([[1, 2], [4, 1]]), (300, 1))
    with FakeTensorMode():
        packed, flat = torch.empty(900, device="cuda"), torch.empty(9, device="cuda")
        with Operations() as operations:
            add_packed(packed, flat, segments)
    assert operations.names.count("aten.sum.dim_IntList") == 1
    # Packing, the sum with its first row, and unpacking.
    assert len([name for name in operations.names if "foreach" in name or ".add" in name]) == 3


def test_a_piece_for_many_ranks_is_packed_once_and_repeated() -> None:
    segments = np.tile(np.array([[5, 2], [7, 1]]), (3, 1))
    packed = torch.full((10,), -1)
    pack(FLAT, segments, packed)
    assert packed.tolist() == [5, 6, 7] * 3 + [-1]


def test_nothing_is_added_without_contributions() -> None:
    flat = FLAT.clone()
    add_packed(flat[:0], flat, np.empty((0, 2), np.int64))
    assert torch.equal(flat, FLAT)


class Launches(TorchDispatchMode):
    """Counts the operations that would launch kernels on a device."""

    names: list[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "foreach" in str(func) or func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.add_):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_the_segments_of_a_rank_take_one_operation() -> None:
    segments = np.array([[0, 1], [2, 1], [4, 1], [0, 1], [2, 1], [6, 1]])
    flat, packed = torch.zeros(8), torch.ones(6)
    with Launches() as launches:  # type: ignore[no-untyped-call]
        launches.names = []
        add_packed(packed, flat, segments)
        pack(flat, segments, packed)
        unpack(packed, flat, segments)
    assert launches.names == ["_foreach_add_", "_foreach_add_", "_foreach_copy_", "_foreach_copy_"]
    assert flat.tolist() == [2, 0, 2, 0, 1, 0, 1, 0]


def test_segments_that_follow_each_other_are_one_pair() -> None:
    segments = np.array([[6, 2], [8, 1], [9, 0], [0, 3], [3, 1], [5, 1]])
    packed = torch.arange(8) + 100
    found = [(of_flat.tolist(), of_packed.tolist()) for of_flat, of_packed in pieces(FLAT, segments, packed)]
    expected, end = [], 0
    for offset, elements in ((6, 3), (0, 4), (5, 1)):
        values = FLAT[offset : offset + elements].tolist()
        expected.append((values, list(range(100 + end, 100 + end + elements))))
        end += elements
    assert found == expected
    assert list(pieces(FLAT, segments[:0], packed)) == []
