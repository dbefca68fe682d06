"""When gradients leave, and how much of them is on its way at once."""

from typing import Any

import torch

from hydraulis.runtime.redistribute.gradient_reduction import GradientDeparture
from hydraulis.runtime.redistribute.sum_exchanges import NUM_STAGING
from runtime.redistribute.fake_exchange import FakeExchange, bucket, home_and_buffers, relayed_bucket, trade

# Four buckets; this rank holds two elements of each but the last, of which it holds nothing, and is the home
# of one element of each, which two ranks contribute to, to that of the last three.
BUCKETS = [bucket([(2 * number, 2)], [(number, 1), (number, 1)]) for number in range(3)]
BUCKETS.append(bucket([], [(3, 1), (3, 1), (3, 1)]))


def begun(exchange: Any, accumulations: dict[int, int]) -> tuple[GradientDeparture, Any]:
    home, buffers = home_and_buffers(home=4, held=6)
    departure = GradientDeparture(exchange, home, buffers)
    departure.begin(BUCKETS, accumulations)
    return departure, home


def test_a_bucket_leaves_after_the_last_addition_and_after_those_behind_it() -> None:
    exchange = FakeExchange()
    departure, _ = begun(exchange, {0: 2, 1: 1, 2: 2})
    assert len(exchange.works) == 0
    departure.accumulated(2)
    assert len(exchange.works) == 0
    # Bucket 3 is not held, and may go; bucket 1 is ready, and has to wait for bucket 2.
    departure.accumulated(1)
    assert len(exchange.works) == 1
    departure.accumulated(2)
    assert len(exchange.works) == 2
    exchange.works[0].end()
    departure.advance()
    assert len(exchange.works) == 3
    departure.accumulated(0)
    assert len(exchange.works) == 3
    assert [len(work.outgoing) for work in exchange.works] == [0, 2, 2]


def test_no_more_is_in_flight_than_there_is_room_for_and_nobody_waits() -> None:
    exchange = FakeExchange()
    departure, _ = begun(exchange, {})
    departure.advance()
    assert len(exchange.works) == NUM_STAGING
    departure.advance()
    assert len(exchange.works) == NUM_STAGING
    assert all(work.waits == 0 for work in exchange.works)
    exchange.works[0].end()
    departure.advance()
    assert len(exchange.works) == NUM_STAGING + 1
    # Two buffers take turns, and neither is one that is in flight.
    addresses = [work.incoming.data_ptr() for work in exchange.works]
    assert addresses[0] == addresses[2] != addresses[1]


def test_beside_computation_nothing_waits_for_room_and_the_end_is_waited_for() -> None:
    exchange = FakeExchange(is_apart=True)
    departure, _ = begun(exchange, {})
    departure.advance()
    assert len(exchange.works) == 4
    assert [work.waits for work in exchange.works] == [1, 1, 0, 0]
    assert exchange.joins == 0
    departure.finish()
    assert exchange.joins == 1


def test_contributions_are_added_in_rank_order_once_and_leftovers_do_not_count() -> None:
    # 2^24 + 1 is no float32: in another order the last would be 0.
    large = 2.0**24
    sources = [torch.tensor([large, -large, 1.0]), *(torch.tensor([1.0, 2.0]) for _ in range(3))]
    exchange = FakeExchange(sources)
    departure, home = begun(exchange, {0: 1, 1: 1, 2: 1})
    departure.finish()
    assert home.gradient.tolist() == [3.0, 3.0, 3.0, 1.0]
    assert len(exchange.works) == 4


def test_what_lies_in_another_order_is_put_in_that_of_its_homes_before_it_leaves() -> None:
    exchange = FakeExchange()
    home, buffers = home_and_buffers(home=1, held=4)
    departure = GradientDeparture(exchange, home, buffers)  # type: ignore[arg-type]
    departure.begin([bucket([(2, 2), (1, 1)], [(0, 1)] * 3)], {})
    buffers.gradient.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    departure.advance()
    (work,) = exchange.works
    assert work.outgoing.tolist() == [3.0, 4.0, 2.0]
    departure.finish()
    assert home.gradient.tolist() == [9.0]


def test_what_was_never_added_to_leaves_at_the_end() -> None:
    exchange = FakeExchange()
    departure, _ = begun(exchange, {0: 5, 2: 5})
    departure.accumulated(0)
    departure.finish()
    assert len(exchange.works) == 4
    assert all(work.waits == 1 for work in exchange.works)
    # Between iterations hooks find nothing to do.
    departure.accumulated(0)
    departure.advance()
    assert len(exchange.works) == 4


# Of two nodes: this rank holds two elements of each bucket, adds two parts of two up, and is the home of one.
RELAYED = [
    relayed_bucket(
        trade([(2 * number, 2)], [(0, 2), (0, 2)]), 2, trade([(0, 1), (1, 1)], [(number, 1), (number, 1)])
    )
    for number in range(5)
]


def relaying(*, is_apart: bool) -> tuple[GradientDeparture, FakeExchange, FakeExchange, Any]:
    inside = FakeExchange([torch.tensor([1.0, 2.0, 10.0, 20.0])] * 5, is_apart=is_apart)
    inside.between = FakeExchange([torch.tensor([100.0, 1000.0])] * 5)
    home, buffers = home_and_buffers(home=5, held=10)
    departure = GradientDeparture(inside, home, buffers)  # type: ignore[arg-type]
    departure.begin(RELAYED, {})
    return departure, inside, inside.between, home


def test_sums_of_a_node_go_on_to_home() -> None:
    departure, _, between, home = relaying(is_apart=False)
    departure.finish()
    assert [work.outgoing.tolist() for work in between.works] == [[11.0, 22.0]] * 5
    assert home.gradient.tolist() == [1100.0] * 5


def test_nobody_waits_for_room_in_the_second_part_either() -> None:
    departure, inside, between, _ = relaying(is_apart=False)
    for arrived in range(4):
        departure.advance()
        assert len(inside.works) == min(5, NUM_STAGING + arrived)
        if arrived < 3:
            inside.works[arrived].end()
        if arrived == 2:
            # Two sums are on their way home: the third waits at its relay until the first is there.
            departure.advance()
            assert (len(inside.works), len(between.works)) == (NUM_STAGING + 2, 2)
            between.works[0].end()
    assert all(work.waits == 0 for work in inside.works[3:] + between.works[1:])
    departure.finish()
    assert [work.waits for work in inside.works] == [1] * 5


def test_a_relay_is_not_used_again_before_its_sums_are_at_home() -> None:
    departure, inside, between, home = relaying(is_apart=True)
    departure.advance()
    assert len(inside.works) == 5
    addresses = [work.outgoing.data_ptr() for work in between.works]
    assert len(between.works) == 3
    assert len(set(addresses)) == len(addresses)
    departure.finish()
    assert len(between.works) == 5
    assert home.gradient.tolist() == [1100.0] * 5
    assert inside.joins == 1
