"""Exchanges whose contributions are added up where they arrive; those of a rank alone can be copied."""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from hydraulis._core import Exchange
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, StartedExchange
from hydraulis.runtime.redistribute.segments import add_packed, are_in_order, put_in_order, region, unpack
from hydraulis.runtime.redistribute.staging import Staging
from hydraulis.runtime.state.places import PlacedExchange

# One bucket is added up while the next one is in flight.
NUM_STAGING = 2


class _Flight(NamedTuple):
    exchange: Exchange | PlacedExchange
    incoming: Tensor
    started: StartedExchange
    target: Tensor


class SummedExchanges:
    """At most `NUM_STAGING` exchanges in flight; contributions are added in the order of the group's ranks.

    Args:
        group: Group of the exchanges.
        like: Tensor whose dtype and device the elements have.
    """

    def __init__(self, group: ExchangeGroup, like: Tensor) -> None:
        self._group = group
        self._staging = deque(Staging(like[:0]) for _ in range(NUM_STAGING))
        self._in_flight: deque[_Flight] = deque()

    def __len__(self) -> int:
        """The number of exchanges in flight."""
        return len(self._in_flight)

    def reserve(self, elements: int) -> None:
        """Allocate staging for the most elements that any exchange receives."""
        for staging in self._staging:
            staging.take(elements)

    @property
    def staging(self) -> list[Tensor]:
        """The staging buffers."""
        return [staging.room for staging in self._staging]

    @property
    def next_staging(self) -> Staging:
        """The staging of the next exchange, free until it starts."""
        assert not self.is_full, "every staging buffer is in flight"
        return self._staging[0]

    @property
    def is_full(self) -> bool:
        """Whether an exchange must complete before the next one can start."""
        return len(self) == NUM_STAGING

    @property
    def has_arrived(self) -> bool:
        """Whether the oldest exchange in flight has arrived."""
        return self._in_flight[0].started.is_completed()

    def start(self, exchange: Exchange | PlacedExchange, source: Tensor, target: Tensor) -> None:
        """Start an exchange.

        Args:
            exchange: This rank's part of it.
            source: Buffer of its near segments. They are put in order there, and must not change until
                `complete` has taken them.
            target: Buffer of its far segments, to which `complete` adds or copies the received elements.
        """
        staging = self.next_staging
        if not are_in_order(exchange.near):
            put_in_order(source, exchange.near, staging)
        # Staging buffers take turns: the next one is that of the exchange that completed longest ago.
        self._staging.rotate(-1)
        outgoing = region(source, exchange.near)
        incoming = outgoing if self._group.is_alone else staging.take(int(exchange.far_counts.sum()))
        started = self._group.start(outgoing, incoming, exchange.near_counts, exchange.far_counts)
        self._in_flight.append(_Flight(exchange, incoming, started, target))

    def complete(self, *, replaces: bool = False) -> Tensor:
        """Wait for the oldest exchange, add or copy its contributions to its target, and return the target.

        Args:
            replaces: Whether the contributions, which are those of one rank, replace the target's elements.
        """
        exchange, incoming, started, target = self._in_flight.popleft()
        started.wait()
        (unpack if replaces else add_packed)(incoming, target, exchange.far)
        return target
