"""Contributions that travel to where they are added up."""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from hydraulis._core import Trade
from hydraulis.runtime.redistribute.group_exchange import GroupExchange, StartedTrade
from hydraulis.runtime.redistribute.segments import are_in_order, pieces, put_in_order, region
from hydraulis.runtime.redistribute.staging import Staging

# One is added up while the other travels.
NUM_STAGING = 2


class _Flight(NamedTuple):
    trade: Trade
    incoming: Tensor
    started: StartedTrade
    target: Tensor


class SumTrades:
    """Trades in flight, no more than there is staging for; contributions are added in the order of peers.

    Args:
        exchange: of the peers.
        like: of the type and on the device of what travels.
    """

    def __init__(self, exchange: GroupExchange, like: Tensor) -> None:
        self._exchange = exchange
        self._staging = deque(Staging(like[:0]) for _ in range(NUM_STAGING))
        self._in_flight: deque[_Flight] = deque()

    def __len__(self) -> int:
        """The trades in flight."""
        return len(self._in_flight)

    def reserve(self, elements: int) -> None:
        """Have room at once for as much as comes in in any trade."""
        for staging in self._staging:
            staging.take(elements)

    @property
    def staging(self) -> list[Tensor]:
        """The staging buffers."""
        return [staging.room for staging in self._staging]

    @property
    def room(self) -> Staging:
        """What is staged next, free until then."""
        assert not self.is_full, "both are in flight"
        return self._staging[0]

    @property
    def is_full(self) -> bool:
        """Whether one has to land before the next can start."""
        return len(self) == NUM_STAGING

    @property
    def has_arrived(self) -> bool:
        """Whether the oldest one in flight is done."""
        return self._in_flight[0].started.is_completed()

    def start(self, trade: Trade, source: Tensor, target: Tensor) -> None:
        """Start a trade.

        Args:
            trade: of this rank.
            source: what its near segments are of; they are put in order there, and not to be changed until
                the trade has landed.
            target: what its far segments are of.
        """
        room = self.room
        if not are_in_order(trade.near):
            put_in_order(source, trade.near, room)
        # Rooms take turns: next is the one whose trade landed longest ago.
        self._staging.rotate(-1)
        outgoing, incoming = region(source, trade.near), room.take(int(trade.far_counts.sum()))
        started = self._exchange.start(outgoing, incoming, trade.near_counts, trade.far_counts)
        self._in_flight.append(_Flight(trade, incoming, started, target))

    def land(self) -> Tensor:
        """Wait for the oldest trade, add up what came, and give what it was added to."""
        trade, incoming, started, target = self._in_flight.popleft()
        started.wait()
        for place, values in pieces(target, trade.far, incoming):
            place += values
        return target
