"""Where parameters wait on their way out, where they arrive, and who waits for them."""

from typing import Any

import pytest
import torch

from hydraulis.runtime.redistribute.parameter_gather import ParameterArrival, loads
from hydraulis.runtime.redistribute.staging import Staging
from runtime.redistribute.fake_exchange import FakeExchange, bucket, home_and_buffers

# Held two and two; the home of one each, which two ranks hold.
BUCKETS = [bucket([(0, 1), (1, 1)], [(0, 1), (0, 1)]), bucket([(2, 2)], [(1, 1), (1, 1)])]


def arriving(exchange: Any, home: Any, buffers: Any) -> ParameterArrival:
    room = Staging(buffers.gradient)
    return ParameterArrival(exchange, home, buffers, lambda: room)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_leave_from_the_gradient_buffer_and_arrive_where_they_stay(dtype: torch.dtype) -> None:
    exchange = FakeExchange()
    home, buffers = home_and_buffers(home=2, held=4, dtype=dtype)
    arrival = arriving(exchange, home, buffers)
    arrival.start(BUCKETS)
    assert len(exchange.works) == 2
    start, end = buffers.gradient.data_ptr(), buffers.gradient.data_ptr() + buffers.gradient.nbytes
    for work in exchange.works:
        assert work.outgoing.dtype == dtype
        assert start <= work.outgoing.data_ptr() < end
    arrival.finish()
    assert buffers.parameter.tolist() == [1, 1, 2, 2]
    assert not buffers.gradient.any()
    assert len(arrival.overflow) == 0


def test_those_that_arrive_in_another_order_are_put_where_they_stay_once_they_are_waited_for() -> None:
    exchange = FakeExchange([torch.tensor([5.0, 6.0, 7.0]), torch.tensor([8.0])])
    home, buffers = home_and_buffers(home=2, held=4)
    arrival = arriving(exchange, home, buffers)
    arrival.start([bucket([(2, 1), (0, 2)], [(0, 1)]), bucket([(3, 1)], [(1, 1)])])
    exchange.works[0].end()
    before = buffers.parameter._version
    arrival.wait_for(0)
    assert buffers.parameter.tolist() == [6, 7, 5, 0]
    # What has been computed with other blocks counts as unchanged.
    assert buffers.parameter._version == before
    arrival.finish()
    assert buffers.parameter.tolist() == [6, 7, 5, 8]


def test_a_block_waits_for_its_own_parameters_and_those_before() -> None:
    exchange = FakeExchange()
    home, buffers = home_and_buffers(home=2, held=4)
    arrival = arriving(exchange, home, buffers)
    arrival.start(BUCKETS)
    arrival.wait_for(0)
    arrival.wait_for(0)
    assert [work.waits for work in exchange.works] == [1, 0]
    arrival.wait_for(5)
    assert [work.waits for work in exchange.works] == [1, 1]


def test_what_has_no_room_together_leaves_one_after_another() -> None:
    # As many holders of this rank's share as make three times what it holds itself.
    buckets = [bucket([(0, 1)], [(0, 1)] * 3), bucket([(1, 1)], [(1, 1)] * 3)]
    exchange = FakeExchange([torch.tensor([5.0]), torch.tensor([6.0])] * 2)
    home, buffers = home_and_buffers(home=2, held=4)
    arrival = arriving(exchange, home, buffers)
    for _ in range(2):
        arrival.start(buckets)
        first, second = exchange.works[-2:]
        # The second lies where the first lay, which had left.
        assert (first.waits, second.waits) == (1, 0)
        assert first.outgoing.data_ptr() == second.outgoing.data_ptr() == buffers.gradient.data_ptr()
        assert second.outgoing.tolist() == [2, 2, 2]
        arrival.finish()
        assert (first.waits, second.waits) == (2, 1)
        assert buffers.parameter.tolist() == [5, 6, 0, 0]
    assert len(arrival.overflow) == 0


def test_a_bucket_that_the_gradient_buffer_has_no_room_for_has_room_of_its_own() -> None:
    exchange = FakeExchange([torch.tensor([5.0])] * 2)
    home, buffers = home_and_buffers(home=2, held=2)
    arrival = arriving(exchange, home, buffers)
    for _ in range(2):
        arrival.start([bucket([(0, 1)], [(0, 1)] * 3)])
        assert exchange.works[-1].outgoing.tolist() == [1, 1, 1]
        arrival.finish()
        assert buffers.parameter.tolist() == [5, 0]
    assert len(arrival.overflow) == 3


@pytest.mark.parametrize(
    ("rooms", "capacity", "expected"),
    [
        ([], 4, []),
        ([1, 2, 1], 4, [[0, 1, 2]]),
        ([3, 2, 1, 4], 4, [[0], [1, 2], [3]]),
        ([9, 0, 0, 1], 4, [[0], [1, 2, 3]]),
        ([1, 1], 0, [[0], [1]]),
    ],
)
def test_a_load_has_room_together_or_is_a_single_bucket(
    rooms: list[int], capacity: int, expected: list[list[int]]
) -> None:
    assert [list(load) for load in loads(rooms, capacity)] == expected
