"""Parameters on their way from home to this iteration's layout."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from hydraulis._core import BucketTransfer
from hydraulis.runtime.bucket_exchange import BucketExchange, Trade
from hydraulis.runtime.buffers import StrategyBuffers
from hydraulis.runtime.home import HomeShare
from hydraulis.runtime.segments import pieces, region


class ParameterArrival:
    """All buckets' parameters, started at once in the order of forward, and waited for one by one.

    They arrive in the strategy's buffer itself, since what a rank holds of a bucket lies there in one piece,
    in the order of its homes. On their way out they lie in the gradient buffer, which has no other use before
    the first backward and is about as large: a rank sends on average what it holds, and in no more bytes an
    element. Only what does not fit there takes memory of its own.

    Args:
        exchange: of all ranks, used for nothing else until every parameter was started.
        home: this rank's share.
        buffers: this rank's strategy buffers.
    """

    def __init__(self, exchange: BucketExchange, home: HomeShare, buffers: StrategyBuffers) -> None:
        self._exchange = exchange
        self._home = home
        self._buffers = buffers
        self._staging = buffers.gradient.view(buffers.parameter.dtype)
        self._overflow = buffers.parameter.new_empty(0)
        self._in_flight: deque[tuple[int, Trade]] = deque()

    @property
    def overflow(self) -> Tensor:
        """Room for what is on its way out and had none in the gradient buffer."""
        return self._overflow

    @property
    def overflow_elements(self) -> int:
        """Elements on their way out that the gradient buffer had no room for, at most."""
        return len(self._overflow)

    def start(self, buckets: Sequence[BucketTransfer]) -> None:
        """Start every bucket. Collective."""
        rooms = self._rooms([int(bucket.home_counts.sum()) for bucket in buckets])
        with self._exchange.beside():
            for number, (bucket, outgoing) in enumerate(zip(buckets, rooms, strict=True)):
                for values, place in pieces(self._home.master, bucket.home, outgoing):
                    place.copy_(values)
                incoming = region(self._buffers.parameter, bucket.held)
                trade = self._exchange.start(outgoing, incoming, bucket.home_counts, bucket.held_counts)
                self._in_flight.append((number, trade))

    def is_awaited(self, number: int) -> bool:
        """Whether the parameters of a bucket, or of one before it, have not been waited for."""
        return bool(self._in_flight) and self._in_flight[0][0] <= number

    def wait_for(self, number: int) -> None:
        """Wait until the parameters of a bucket, and of all before it, are there."""
        while self.is_awaited(number):
            _, trade = self._in_flight.popleft()
            trade.wait()

    def finish(self) -> None:
        """Wait for all parameters, also those that this rank sends, and zero the gradient buffer."""
        while self._in_flight:
            self.wait_for(self._in_flight[-1][0])
        self._buffers.gradient.zero_()

    def _rooms(self, sizes: Sequence[int]) -> list[Tensor]:
        """Find room for so many elements of each bucket: in the gradient buffer, then in the overflow."""
        ends = list(accumulate(sizes))
        num_fitting = bisect_right(ends, len(self._staging))
        fitting = ends[num_fitting - 1] if num_fitting else 0
        missing = sum(sizes) - fitting
        if missing > len(self._overflow):
            self._overflow = self._overflow.new_empty(missing)
        rest = [*sizes[num_fitting:], len(self._overflow) - missing]
        return [
            *self._staging[:fitting].split(list(sizes[:num_fitting])),
            *self._overflow.split(rest)[:-1],
        ]
