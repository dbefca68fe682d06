"""Gradients on their way home, while backward still runs."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from hydraulis._core import BucketTransfer
from hydraulis.runtime.bucket_exchange import BucketExchange, Trade
from hydraulis.runtime.buffers import StrategyBuffers
from hydraulis.runtime.home import HomeShare
from hydraulis.runtime.segments import pieces, region

# One is added up while the other travels.
NUM_STAGING = 2


class _Flight(NamedTuple):
    bucket: BucketTransfer
    incoming: Tensor
    trade: Trade


class GradientDeparture:
    """All buckets' gradients, from the last to the first: the order of backward.

    A bucket is started when this rank's last backward has gone through its block, and those before it are
    started; of a bucket that this rank holds nothing of, as soon as those before it are. It leaves from the
    gradient buffer itself. At home contributions are added in rank order in the dtype of the sums, so a run
    is bit-reproducible.

    What comes in is staged: two buckets' contributions to this rank's share, and no bucket is started before
    there is room for it. Computation never waits for room: another rank's start may depend on it. So ranks
    start buckets at different moments, in one order. Beside computation, on CUDA, a bucket that is next lands
    the one before the last first, and waits for it there.

    Args:
        exchange: of all ranks, each of which has started its parameters.
        home: this rank's share.
        buffers: this rank's strategy buffers.
    """

    def __init__(self, exchange: BucketExchange, home: HomeShare, buffers: StrategyBuffers) -> None:
        self._exchange = exchange
        self._home = home
        self._buffers = buffers
        self._staging = deque(Staging(home.gradient[:0]) for _ in range(NUM_STAGING))
        self._buckets: Sequence[BucketTransfer] = ()
        # Of each bucket, how often a gradient of its parameters is still to be added to.
        self._pending: dict[int, int] = {}
        self._left = 0
        self._in_flight: deque[_Flight] = deque()

    @property
    def staging(self) -> list[Tensor]:
        """The staging buffers."""
        return [staging.room for staging in self._staging]

    @property
    def staging_elements(self) -> list[int]:
        """Elements that each of the staging buffers has room for."""
        return sorted(map(len, self.staging))

    @property
    def num_left(self) -> int:
        """Buckets that were not started yet."""
        return self._left

    def begin(self, buckets: Sequence[BucketTransfer], accumulations: Mapping[int, int]) -> None:
        """Expect the gradients of an iteration.

        Args:
            buckets: what this rank trades in each.
            accumulations: how often the gradients of a bucket's parameters will be added to in all
                micro-batches together; none for buckets that this rank holds nothing of.
        """
        self._home.gradient.zero_()
        self._buckets = buckets
        self._pending = dict(accumulations)
        self._left = len(buckets)

    def accumulated(self, number: int) -> None:
        """Note that the gradient of one of a bucket's parameters was added to."""
        if number in self._pending:
            self._pending[number] -= 1
            if self._pending[number] == 0:
                del self._pending[number]
                self.advance()

    def advance(self) -> None:
        """Start the buckets that are next and ready, as far as there is room."""
        while self._left and self._left - 1 not in self._pending:
            if len(self._in_flight) == NUM_STAGING:
                if not self._exchange.is_apart and not self._in_flight[0].trade.is_completed():
                    return
                self._land()
            self._start()

    def finish(self) -> None:
        """Start what is left, and wait until all gradients are at home."""
        self._pending.clear()
        while self._left:
            if len(self._in_flight) == NUM_STAGING:
                self._land()
            self._start()
        while self._in_flight:
            self._land()
        self._exchange.join()

    def _start(self) -> None:
        self._left -= 1
        bucket = self._buckets[self._left]
        outgoing = region(self._buffers.gradient, bucket.held)
        # The one whose bucket landed longest ago.
        self._staging.rotate(-1)
        with self._exchange.beside():
            incoming = self._staging[-1].take(int(bucket.home_counts.sum()))
            trade = self._exchange.start(outgoing, incoming, bucket.held_counts, bucket.home_counts)
        self._in_flight.append(_Flight(bucket, incoming, trade))

    def _land(self) -> None:
        bucket, incoming, trade = self._in_flight.popleft()
        with self._exchange.beside():
            trade.wait()
            for target, values in pieces(self._home.gradient, bucket.home, incoming):
                target += values


class Staging:
    """Memory that grows to the largest bucket's share, and then stays.

    Args:
        like: of the type and on the device of what is staged.

    Attributes:
        room: all of it.
    """

    def __init__(self, like: Tensor) -> None:
        self.room = like.new_empty(0)

    def take(self, elements: int) -> Tensor:
        """Give so many elements; their values mean nothing."""
        if len(self.room) < elements:
            self.room = self.room.new_empty(elements)
        return self.room[:elements]
