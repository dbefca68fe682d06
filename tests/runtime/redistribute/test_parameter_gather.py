"""Staging of outgoing parameters, their place of arrival, and the waits for them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hydraulis.runtime.pipeline.timers import step_timers
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.redistribute.parameter_gather import Crossing, GatheredBucket, ParameterGather, loads
from hydraulis.runtime.redistribute.staging import Staging
from runtime.redistribute.fake_exchange import FakeExchange, bucket, relayed_bucket, shards, trade

# Held two and two; the owner of one each, which two ranks hold.
BUCKETS = [bucket([(0, 1), (1, 1)], [(0, 1), (0, 1)]), bucket([(2, 2)], [(1, 1), (1, 1)])]


def gather_from(exchange: Any, optimizer_shard: Any, local_shard: Any) -> ParameterGather:
    staging = Staging(local_shard.gradient)
    return ParameterGather(exchange, optimizer_shard, local_shard, lambda: staging, step_timers(CPU))


def trained(buckets: Sequence[Any]) -> list[GatheredBucket]:
    return [GatheredBucket(number, True, one) for number, one in enumerate(buckets)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_are_sent_from_the_gradient_buffer_to_their_final_place(dtype: torch.dtype) -> None:
    exchange = FakeExchange()
    optimizer_shard, local_shard = shards(owned=2, local=4, dtype=dtype)
    gather = gather_from(exchange, optimizer_shard, local_shard)
    gather.start(trained(BUCKETS))
    assert len(exchange.works) == 2
    start, end = (
        local_shard.gradient.data_ptr(),
        local_shard.gradient.data_ptr() + local_shard.gradient.nbytes,
    )
    for work in exchange.works:
        assert work.outgoing.dtype == dtype
        assert start <= work.outgoing.data_ptr() < end
    gather.finish()
    assert local_shard.parameter.tolist() == [1, 1, 2, 2]
    assert not local_shard.gradient.any()
    assert len(gather.staging[0]) == 0


def test_parameters_received_in_another_order_are_placed_after_the_wait() -> None:
    exchange = FakeExchange([torch.tensor([5.0, 6.0, 7.0]), torch.tensor([8.0])])
    optimizer_shard, local_shard = shards(owned=2, local=4)
    gather = gather_from(exchange, optimizer_shard, local_shard)
    gather.start(trained([bucket([(2, 1), (0, 2)], [(0, 1)]), bucket([(3, 1)], [(1, 1)])]))
    exchange.works[0].end()
    before = local_shard.parameter._version
    gather.wait_for(0)
    assert local_shard.parameter.tolist() == [6, 7, 5, 0]
    # What has been computed with other blocks counts as unchanged.
    assert local_shard.parameter._version == before
    gather.finish()
    assert local_shard.parameter.tolist() == [6, 7, 5, 8]


def test_a_layer_group_waits_for_its_own_parameters_and_earlier_ones() -> None:
    exchange = FakeExchange()
    optimizer_shard, local_shard = shards(owned=2, local=4)
    gather = gather_from(exchange, optimizer_shard, local_shard)
    gather.start(trained(BUCKETS))
    gather.wait_for(0)
    gather.wait_for(0)
    assert [work.waits for work in exchange.works] == [1, 0]
    gather.wait_for(5)
    assert [work.waits for work in exchange.works] == [1, 1]


def test_buckets_without_common_room_are_sent_one_after_another() -> None:
    # As many holders of this rank's share as make three times what it holds itself.
    buckets = [bucket([(0, 1)], [(0, 1)] * 3), bucket([(1, 1)], [(1, 1)] * 3)]
    exchange = FakeExchange([torch.tensor([5.0]), torch.tensor([6.0])] * 2)
    optimizer_shard, local_shard = shards(owned=2, local=4)
    gather = gather_from(exchange, optimizer_shard, local_shard)
    for _ in range(2):
        gather.start(trained(buckets))
        first, second = exchange.works[-2:]
        # The second lies where the first lay, which had left.
        assert (first.waits, second.waits) == (1, 0)
        assert first.outgoing.data_ptr() == second.outgoing.data_ptr() == local_shard.gradient.data_ptr()
        assert second.outgoing.tolist() == [2, 2, 2]
        gather.finish()
        assert (first.waits, second.waits) == (2, 1)
        assert local_shard.parameter.tolist() == [5, 6, 0, 0]
    assert len(gather.staging[0]) == 0


def test_ranks_split_the_buckets_for_the_smallest_of_their_buffers() -> None:
    buckets = [bucket([(0, 1)], [(0, 1)] * 3), bucket([(1, 1)], [(1, 1)] * 3)]
    # This rank's buffer has room for both buckets, that of another rank for one.
    for common, waits in ((8, [0, 0]), (3, [1, 0])):
        exchange = FakeExchange([torch.tensor([5.0]), torch.tensor([6.0])])
        optimizer_shard, local_shard = shards(owned=2, local=8)
        local_shard.common_gradients = common
        gather = gather_from(exchange, optimizer_shard, local_shard)
        gather.start(trained(buckets))
        assert [work.waits for work in exchange.works] == waits
        gather.finish()
        assert local_shard.parameter.tolist()[:3] == [5, 6, 0]


def test_a_bucket_larger_than_the_gradient_buffer_has_its_own_room() -> None:
    exchange = FakeExchange([torch.tensor([5.0])] * 2)
    optimizer_shard, local_shard = shards(owned=2, local=2)
    gather = gather_from(exchange, optimizer_shard, local_shard)
    for _ in range(2):
        gather.start(trained([bucket([(0, 1)], [(0, 1)] * 3)]))
        assert exchange.works[-1].outgoing.tolist() == [1, 1, 1]
        gather.finish()
        assert local_shard.parameter.tolist() == [5, 0]
    assert len(gather.staging[0]) == 3


@pytest.mark.parametrize(("place", "elements", "messages"), [(0, 3, 1), (1, 2, 1), (2, 5, 2)])
def test_elements_for_the_own_node_do_not_cross(place: int, elements: int, messages: int) -> None:
    exchange = FakeExchange()
    exchange.between = FakeExchange()
    exchange.between.place = place
    # Two elements go to the node of place 0, three to the next, none to the last.
    between = trade([(0, 1), (1, 1), (2, 0)], [(0, 2), (0, 3), (0, 0)])
    optimizer_shard, local_shard = shards(owned=3, local=8)
    gather = gather_from(exchange, optimizer_shard, local_shard)
    gather.start(trained([relayed_bucket(trade([(0, 2)], [(0, 2)]), 2, between)]))
    assert gather.crossing == Crossing(elements * local_shard.parameter.itemsize, messages)


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
def test_a_load_fits_the_room_or_is_a_single_bucket(
    rooms: list[int], capacity: int, expected: list[list[int]]
) -> None:
    assert [list(load) for load in loads(rooms, capacity)] == expected
