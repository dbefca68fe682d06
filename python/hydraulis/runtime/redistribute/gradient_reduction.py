"""Gradients on their way home, while backward still runs."""

from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor

from hydraulis._core import BucketTransfer
from hydraulis.runtime.redistribute.bucket_exchange import BucketExchange
from hydraulis.runtime.redistribute.staging import Staging
from hydraulis.runtime.redistribute.staging_sizes import StagingSizes
from hydraulis.runtime.redistribute.sum_exchanges import NUM_STAGING, SumTrades
from hydraulis.runtime.state.buffers import StrategyBuffers
from hydraulis.runtime.state.optimizer_shard import HomeShare


class GradientDeparture:
    """All buckets' gradients, from the last to the first: the order of backward.

    A bucket is started when this rank's last backward has gone through its block, and those before it are
    started; of a bucket that this rank holds nothing of, once those before it are and `advance` is called. It
    leaves from the gradient buffer itself, put in the order of its homes there if it does not lie so. At home
    contributions are added in rank order in the dtype of the sums, so a run is bit-reproducible. Where there
    are several nodes, they are added inside each of them first, by the rank that relays them, and its sums go
    on to home, where they are added in the order of nodes.

    What comes in is staged: two buckets' contributions to what this rank adds up, and no bucket is started
    before there is room for it. Computation never waits for room: another rank's start may depend on it. So
    ranks start buckets at different moments, in one order. Beside computation, on CUDA, a bucket that is next
    lands the one before the last first, and waits for it there.

    Args:
        exchange: of all ranks, each of which has started its parameters.
        home: this rank's share.
        buffers: this rank's strategy buffers.
    """

    def __init__(self, exchange: BucketExchange, home: HomeShare, buffers: StrategyBuffers) -> None:
        self._exchange = exchange
        self._home = home
        self._buffers = buffers
        self._inside = SumTrades(exchange.inside, home.gradient)
        self._between = SumTrades(exchange.between, home.gradient) if exchange.between else None
        # Those that are added up, and those that are on their way on.
        self._relays = deque(Staging(home.gradient[:0]) for _ in range(2 * NUM_STAGING))
        self._arriving: deque[BucketTransfer] = deque()
        self._buckets: Sequence[BucketTransfer] = ()
        # Of each bucket, how often a gradient of its parameters is still to be added to.
        self._pending: dict[int, int] = {}
        self._left = 0

    def reserve(self, sizes: StagingSizes) -> None:
        """Have room at once for what any strategy stages."""
        self._inside.reserve(sizes.contributions)
        if self._between is not None:
            self._between.reserve(sizes.relayed)
            for relay in self._relays:
                relay.take(sizes.relayed)

    @property
    def staging(self) -> list[Tensor]:
        """The staging buffers, relays among them."""
        relayed = (
            [] if self._between is None else [*self._between.staging, *(one.room for one in self._relays)]
        )
        return [*self._inside.staging, *relayed]

    @property
    def room(self) -> Staging:
        """A staging buffer that is free while no gradients are on their way."""
        assert not self._arriving, "gradients are on their way"
        return self._inside.room

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
            if self._inside.is_full and not self._make_room():
                return
            self._start()

    def finish(self) -> None:
        """Start what is left, and wait until all gradients are at home."""
        self._pending.clear()
        while self._left:
            if self._inside.is_full:
                self._land()
            self._start()
        while len(self._inside):
            self._land()
        while self._between is not None and len(self._between):
            self._land_at_home()
        self._exchange.join()

    def _start(self) -> None:
        self._left -= 1
        bucket = self._buckets[self._left]
        with self._exchange.beside():
            target = self._home.gradient
            if self._between is not None:
                self._relays.rotate(-1)
                target = self._relays[-1].take(bucket.relayed).zero_()
            self._inside.start(bucket.inside, self._buffers.gradient, target)
        self._arriving.append(bucket)

    def _make_room(self) -> bool:
        """Land the bucket that has been on its way longest, if nobody has to wait for that."""
        if not self._exchange.is_apart:
            is_held_up = self._between is not None and self._between.is_full and not self._between.has_arrived
            if is_held_up or not self._inside.has_arrived:
                return False
        self._land()
        return True

    def _land(self) -> None:
        """Add up the bucket that has been on its way longest, and send it on if it is not at home."""
        if self._between is not None and self._between.is_full:
            self._land_at_home()
        bucket = self._arriving.popleft()
        with self._exchange.beside():
            sums = self._inside.land()
            if self._between is not None and bucket.between is not None:
                self._between.start(bucket.between, sums, self._home.gradient)

    def _land_at_home(self) -> None:
        assert self._between is not None
        with self._exchange.beside():
            self._between.land()
