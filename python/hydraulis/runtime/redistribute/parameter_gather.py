"""Parameters on their way from home to this iteration's layout."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from hydraulis._core import BucketTransfer, Trade
from hydraulis.runtime.redistribute.bucket_exchange import BucketExchange
from hydraulis.runtime.redistribute.group_exchange import GroupExchange, StartedTrade
from hydraulis.runtime.redistribute.segments import are_in_order, pieces, put_back, region
from hydraulis.runtime.redistribute.staging import Staging
from hydraulis.runtime.redistribute.staging_sizes import StagingSizes
from hydraulis.runtime.state.buffers import StrategyBuffers
from hydraulis.runtime.state.optimizer_shard import HomeShare


class _Flight(NamedTuple):
    number: int
    trade: Trade
    started: StartedTrade


class ParameterArrival:
    """All buckets' parameters, started before the first forward in its order, and waited for one by one.

    They arrive in the strategy's buffer itself, since what a rank holds of a bucket lies there in one piece:
    in the order of its homes, and where that is not the one in which they stay, they are put there once they
    are waited for. On their way out they lie in the gradient buffer, which has no other use before
    the first backward and is about as large: a rank sends on average what it holds, and in no more bytes an
    element. Buckets that have no room there together go as several loads, each once the one before has left
    it; all ranks divide them alike, so that what they start is in one order over all groups. Only if a single
    bucket has no room it takes memory of its own.

    Where there are several nodes, parameters come to each that needs them once, and are shared out inside.
    This host waits for the first part, bucket by bucket: on the CPU that is before the first forward.

    Args:
        exchange: of all ranks, used for nothing else until every parameter was started.
        home: this rank's share.
        buffers: this rank's strategy buffers.
        room: gives memory to reorder parameters in, free while those are waited for that arrive in another
            order.
    """

    def __init__(
        self,
        exchange: BucketExchange,
        home: HomeShare,
        buffers: StrategyBuffers,
        room: Callable[[], Staging],
    ) -> None:
        self._exchange = exchange
        self._home = home
        self._buffers = buffers
        self._room = room
        self._staging = buffers.gradient.view(buffers.parameter.dtype)
        self._overflow = buffers.parameter.new_empty(0)
        self._relaying: deque[tuple[int, StartedTrade]] = deque()
        self._in_flight: deque[_Flight] = deque()

    def reserve(self, sizes: StagingSizes) -> None:
        """Have room at once for what any strategy sends and the gradient buffer does not hold.

        A rank shares out as many parameters in its node as gradients come back. Between nodes it sends its
        share to each node at most, which is what lives on a rail, and relays as much. Of these the last that
        finds no room in the gradient buffer leaves as much of it unused at most.
        """
        leaving = sizes.contributions + 2 * sizes.relayed
        missing = leaving - len(self._staging)
        if missing > 0:
            self._grow(min(leaving, missing + max(sizes.contributions, sizes.relayed)))

    @property
    def overflow(self) -> Tensor:
        """Room for what is on its way out and had none in the gradient buffer."""
        return self._overflow

    def start(self, buckets: Sequence[BucketTransfer]) -> None:
        """Start every bucket. Collective."""
        with self._exchange.beside():
            before: Sequence[StartedTrade] = ()
            for load in loads([bucket.room for bucket in buckets], len(self._staging)):
                for trade in before:
                    trade.wait()
                before = self._start({number: buckets[number] for number in load})

    def _start(self, buckets: Mapping[int, BucketTransfer]) -> Sequence[StartedTrade]:
        """Start a load; give the trades that bring it to where it stays."""
        if self._exchange.between is None:
            rooms = self._rooms([int(bucket.inside.far_counts.sum()) for bucket in buckets.values()])
            sources = [self._home.master] * len(buckets)
        else:
            rooms, sources = self._relayed(self._exchange.between, buckets)
        items = zip(buckets.items(), sources, rooms, strict=True)
        return [
            self._share_out(number, bucket.inside, source, room) for (number, bucket), source, room in items
        ]

    def _share_out(self, number: int, trade: Trade, source: Tensor, room: Tensor) -> StartedTrade:
        """Start a bucket on its way to the ranks of this node that hold it."""
        while self._relaying and self._relaying[0][0] <= number:
            self._relaying.popleft()[1].wait()
        _pack(source, trade, room)
        incoming = region(self._buffers.parameter, trade.near)
        started = self._exchange.inside.start(room, incoming, trade.far_counts, trade.near_counts)
        self._in_flight.append(_Flight(number, trade, started))
        return started

    def _relayed(
        self, exchange: GroupExchange, buckets: Mapping[int, BucketTransfer]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Start buckets on their way to their relays; give the rooms of the second part, and the relays."""
        trades = [bucket.between for bucket in buckets.values() if bucket.between is not None]
        sizes = [int(trade.far_counts.sum()) for trade in trades]
        relayed = [bucket.relayed for bucket in buckets.values()]
        shared = [int(bucket.inside.far_counts.sum()) for bucket in buckets.values()]
        rooms = self._rooms([*sizes, *relayed, *shared])
        count = len(buckets)
        outgoing, relays = rooms[:count], rooms[count : 2 * count]
        for number, trade, room, relay in zip(buckets, trades, outgoing, relays, strict=True):
            _pack(self._home.master, trade, room)
            started = exchange.start(room, relay, trade.far_counts, trade.near_counts)
            self._relaying.append((number, started))
        return rooms[2 * count :], relays

    def is_awaited(self, number: int) -> bool:
        """Whether the parameters of a bucket, or of one before it, have not been waited for."""
        return bool(self._in_flight) and self._in_flight[0].number <= number

    def wait_for(self, number: int) -> None:
        """Wait until the parameters of a bucket, and of all before it, are there."""
        while self.is_awaited(number):
            _, trade, started = self._in_flight.popleft()
            started.wait()
            if not are_in_order(trade.near):
                # Not through the buffer itself: autograd would take blocks that have computed for changed.
                put_back(self._buffers.parameter.data, trade.near, self._room())

    def finish(self) -> None:
        """Wait for all parameters, also those that this rank sends, and zero the gradient buffer."""
        while self._in_flight:
            self.wait_for(self._in_flight[-1].number)
        self._buffers.gradient.zero_()

    def _rooms(self, sizes: Sequence[int]) -> list[Tensor]:
        """Find room for so many elements of each bucket: in the gradient buffer, then in the overflow."""
        ends = list(accumulate(sizes))
        num_fitting = bisect_right(ends, len(self._staging))
        fitting = ends[num_fitting - 1] if num_fitting else 0
        missing = sum(sizes) - fitting
        self._grow(missing)
        rest = [*sizes[num_fitting:], len(self._overflow) - missing]
        return [
            *self._staging[:fitting].split(list(sizes[:num_fitting])),
            *self._overflow.split(rest)[:-1],
        ]

    def _grow(self, elements: int) -> None:
        if elements > len(self._overflow):
            self._overflow = self._overflow.new_empty(elements)


def loads(rooms: Sequence[int], capacity: int) -> Iterator[range]:
    """Divide buckets into runs that have room together, or are a single one.

    Args:
        rooms: elements that each bucket takes.
        capacity: elements that there is room for.

    Yields:
        The numbers of the buckets of each run.
    """
    start = taken = 0
    for number, room in enumerate(rooms):
        if number > start and taken + room > capacity:
            yield range(start, number)
            start, taken = number, 0
        taken += room
    if start < len(rooms):
        yield range(start, len(rooms))


def _pack(source: Tensor, trade: Trade, room: Tensor) -> None:
    """Copy what goes out of a buffer, by the peers that it goes to."""
    for values, place in pieces(source, trade.far, room):
        place.copy_(values)
