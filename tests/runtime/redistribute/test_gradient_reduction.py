"""When buckets of gradients start, and how many are in flight."""

from typing import Any

import torch

from hydraulis.runtime.redistribute.gradient_reduction import GradientReduction
from hydraulis.runtime.redistribute.summed_exchanges import NUM_STAGING
from runtime.redistribute.fake_exchange import FakeExchange, bucket, relayed_bucket, shards, trade

# Four buckets; this rank holds two elements of each but the last, of which it holds nothing, and is the owner
# of one element of each, which two ranks contribute to, to that of the last three.
BUCKETS = [bucket([(2 * number, 2)], [(number, 1), (number, 1)]) for number in range(3)]
BUCKETS.append(bucket([], [(3, 1), (3, 1), (3, 1)]))


def begun(exchange: Any, accumulations: dict[int, int]) -> tuple[GradientReduction, Any]:
    optimizer_shard, local_shard = shards(owned=4, local=6)
    reduction = GradientReduction(exchange, optimizer_shard, local_shard)
    reduction.expect(BUCKETS, accumulations)
    return reduction, optimizer_shard


def test_a_bucket_is_sent_after_its_last_addition_and_after_the_buckets_behind_it() -> None:
    exchange = FakeExchange()
    reduction, _ = begun(exchange, {0: 2, 1: 1, 2: 2})
    assert len(exchange.works) == 0
    # Bucket 3 is not held.
    reduction.start_from(0)
    assert len(exchange.works) == 1
    reduction.accumulated(2)
    # Bucket 1 is complete, and waits for bucket 2.
    reduction.accumulated(1)
    assert len(exchange.works) == 1
    reduction.accumulated(2)
    assert len(exchange.works) == 2
    exchange.works[0].end()
    reduction.start_from(0)
    assert len(exchange.works) == 3
    reduction.accumulated(0)
    assert len(exchange.works) == 3
    assert [len(work.outgoing) for work in exchange.works] == [0, 2, 2]


def test_a_bucket_starts_once_it_is_permitted_and_complete() -> None:
    exchange = FakeExchange(has_side_stream=True)
    reduction, _ = begun(exchange, {2: 1, 1: 1, 0: 2})
    reduction.accumulated(2)
    assert len(exchange.works) == 0
    reduction.start_from(2)
    assert len(exchange.works) == 2
    reduction.accumulated(1)
    assert len(exchange.works) == 2
    reduction.start_from(1)
    # A permission is not taken back.
    reduction.start_from(3)
    assert len(exchange.works) == 3
    reduction.start_from(0)
    assert len(exchange.works) == 3
    # Its last gradient never comes.
    reduction.end_accumulation()
    assert len(exchange.works) == 4


def test_buckets_in_flight_fit_the_staging_room_without_waiting() -> None:
    exchange = FakeExchange()
    reduction, _ = begun(exchange, {})
    reduction.start_from(0)
    assert len(exchange.works) == NUM_STAGING
    reduction.start_from(0)
    assert len(exchange.works) == NUM_STAGING
    assert all(work.waits == 0 for work in exchange.works)
    exchange.works[0].end()
    reduction.start_from(0)
    assert len(exchange.works) == NUM_STAGING + 1
    # Two buffers take turns, and neither is one that is in flight.
    addresses = [work.incoming.data_ptr() for work in exchange.works]
    assert addresses[0] == addresses[2] != addresses[1]


def test_on_a_side_stream_only_the_end_is_waited_for() -> None:
    exchange = FakeExchange(has_side_stream=True)
    reduction, _ = begun(exchange, {})
    reduction.start_from(0)
    assert len(exchange.works) == 4
    assert [work.waits for work in exchange.works] == [1, 1, 0, 0]
    assert exchange.joins == 0
    reduction.finish()
    assert exchange.joins == 1


def test_contributions_are_added_once_in_rank_order_without_leftovers() -> None:
    # 2^24 + 1 is no float32: in another order the last would be 0.
    large = 2.0**24
    sources = [torch.tensor([large, -large, 1.0]), *(torch.tensor([1.0, 2.0]) for _ in range(3))]
    exchange = FakeExchange(sources)
    reduction, optimizer_shard = begun(exchange, {0: 1, 1: 1, 2: 1})
    reduction.finish()
    assert optimizer_shard.gradient.tolist() == [3.0, 3.0, 3.0, 1.0]
    assert len(exchange.works) == 4


def test_gradients_are_put_in_owner_order_before_they_are_sent() -> None:
    exchange = FakeExchange()
    optimizer_shard, local_shard = shards(owned=1, local=4)
    reduction = GradientReduction(exchange, optimizer_shard, local_shard)  # type: ignore[arg-type]
    reduction.expect([bucket([(2, 2), (1, 1)], [(0, 1)] * 3)], {})
    local_shard.gradient.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    reduction.start_from(0)
    (work,) = exchange.works
    assert work.outgoing.tolist() == [3.0, 4.0, 2.0]
    reduction.finish()
    assert optimizer_shard.gradient.tolist() == [9.0]


def test_a_bucket_without_additions_is_sent_at_the_end() -> None:
    exchange = FakeExchange()
    reduction, _ = begun(exchange, {0: 5, 2: 5})
    reduction.accumulated(0)
    reduction.finish()
    assert len(exchange.works) == 4
    assert all(work.waits == 1 for work in exchange.works)
    # Between iterations hooks find nothing to do.
    reduction.accumulated(0)
    reduction.start_from(0)
    assert len(exchange.works) == 4


# Of two nodes: this rank holds two elements of each bucket, adds two parts of two up, and owns one.
RELAYED = [
    relayed_bucket(
        trade([(2 * number, 2)], [(0, 2), (0, 2)]), 2, trade([(0, 1), (1, 1)], [(number, 1), (number, 1)])
    )
    for number in range(5)
]


def relaying(*, has_side_stream: bool) -> tuple[GradientReduction, FakeExchange, FakeExchange, Any]:
    inside = FakeExchange([torch.tensor([1.0, 2.0, 10.0, 20.0])] * 5, has_side_stream=has_side_stream)
    inside.between = FakeExchange([torch.tensor([100.0, 1000.0])] * 5)
    optimizer_shard, local_shard = shards(owned=5, local=10)
    reduction = GradientReduction(inside, optimizer_shard, local_shard)  # type: ignore[arg-type]
    reduction.expect(RELAYED, {})
    return reduction, inside, inside.between, optimizer_shard


def test_sums_of_a_node_are_sent_to_their_owner() -> None:
    reduction, _, between, optimizer_shard = relaying(has_side_stream=False)
    reduction.finish()
    assert [work.outgoing.tolist() for work in between.works] == [[11.0, 22.0]] * 5
    assert optimizer_shard.gradient.tolist() == [1100.0] * 5


def test_the_second_part_needs_no_wait_for_room() -> None:
    reduction, inside, between, _ = relaying(has_side_stream=False)
    for arrived in range(4):
        reduction.start_from(0)
        assert len(inside.works) == min(5, NUM_STAGING + arrived)
        if arrived < 3:
            inside.works[arrived].end()
        if arrived == 2:
            # Two sums are on their way to the owner: the third waits at its relay until the first is there.
            reduction.start_from(0)
            assert (len(inside.works), len(between.works)) == (NUM_STAGING + 2, 2)
            between.works[0].end()
    assert all(work.waits == 0 for work in inside.works[3:] + between.works[1:])
    reduction.finish()
    assert [work.waits for work in inside.works] == [1] * 5


def test_a_relay_is_used_again_only_after_its_sums_are_at_the_owner() -> None:
    reduction, inside, between, optimizer_shard = relaying(has_side_stream=True)
    reduction.start_from(0)
    assert len(inside.works) == 5
    addresses = [work.outgoing.data_ptr() for work in between.works]
    assert len(between.works) == 3
    assert len(set(addresses)) == len(addresses)
    reduction.finish()
    assert len(between.works) == 5
    assert optimizer_shard.gradient.tolist() == [1100.0] * 5
    assert inside.joins == 1
