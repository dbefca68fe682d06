"""Parameter gather: bucket by bucket from the owners to the local shard of this iteration."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hydraulis._core import BucketTransfer, Exchange
from hydraulis.runtime.pipeline.timers import StepTimers
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, ExchangeGroups, StartedExchange
from hydraulis.runtime.redistribute.segments import are_in_order, pack, put_back, region
from hydraulis.runtime.redistribute.staging import Staging, StagingSizes
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.places import PlacedExchange, PlacedTransfer


class GatheredBucket(NamedTuple):
    """A bucket to gather.

    Attributes:
        layer_group: Layer group whose parameters the bucket has.
        trained: Whether they are trained.
        transfer: This rank's exchanges.
    """

    layer_group: int
    trained: bool
    transfer: BucketTransfer | PlacedTransfer


class Crossing(NamedTuple):
    """A rank's exchanges between nodes in one parameter gather.

    Attributes:
        bytes: Bytes that the rank sends to other nodes or receives from them, the larger of both, over all
            buckets.
        messages: Messages that it sends, at most one to each other node for each bucket.
    """

    bytes: int = 0
    messages: int = 0


class _Flight(NamedTuple):
    bucket: GatheredBucket
    started: StartedExchange


class _Outgoing(NamedTuple):
    """A bucket on this rank's way out inside its node.

    Attributes:
        bucket: The bucket.
        source: Buffer of its far segments: that of the owner, or a relay.
        far: Its far segments in the source, int64 [segments, 2].
        relayed: Exchange between nodes that fills the relay; None on one node.
        staging: Memory for the packed elements.
    """

    bucket: GatheredBucket
    source: Tensor
    far: NDArray[np.int64]
    relayed: StartedExchange | None
    staging: Tensor


class ParameterGather:
    """Gathers buckets in the order of layer groups: all before the first forward, or sharded ones singly.

    Parameters arrive in the local shard itself, where a bucket is one piece. They arrive in the order of
    their owners; where that is not the order of the local shard, they are permuted once they are waited for.

    The only rank of a node copies parameters there without staging. Otherwise outgoing parameters that are
    not sharded are staged in the gradient buffer, which is free before the first backward: all ranks together
    send as many elements as they receive, of at most the gradient's width. Buckets that do not fit there
    together go as several loads, each once the one before has left. All ranks split the buckets alike, for
    the smallest of their buffers, so every rank starts the same exchanges in the same order over all groups.
    A single bucket that does not fit takes overflow memory.

    On several nodes a parameter reaches each node once and is distributed inside it. This thread waits for
    the first part, bucket by bucket: on the CPU before the first forward.

    Args:
        groups: Groups of the exchanges.
        optimizer_shard: This rank's optimizer shard, from which parameters leave.
        local_shard: This rank's local shard, where parameters arrive.
        free_staging: Returns memory to permute trained parameters in, free while they are waited for; None
            for sharded parameters, which are waited for while gradients use that memory and the gradient
            buffer.
        timers: Timers of the exchanges between nodes.

    Attributes:
        crossing: Exchanges between nodes of the last gather.
    """

    def __init__(
        self,
        groups: ExchangeGroups,
        optimizer_shard: OptimizerShard,
        local_shard: LocalShard,
        free_staging: Callable[[], Staging] | None,
        timers: StepTimers,
    ) -> None:
        self.crossing = Crossing()
        self._timers = timers
        self._groups = groups
        self._optimizer_shard = optimizer_shard
        self._local_shard = local_shard
        self._free_staging = free_staging
        # Memory to permute frozen parameters in, or sharded ones.
        self._permuted = Staging(local_shard.parameter[:0])
        self._overflow = local_shard.parameter.new_empty(0)
        self._in_flight: deque[_Flight] = deque()

    def reserve(self, trained: StagingSizes, frozen: StagingSizes) -> None:
        """Allocate the overflow and the staging that any strategy needs.

        A rank sends as many parameters into its node as it receives gradients from there. Between nodes it
        sends at most its shard to each node, in all as many elements as its rail owns, and relays as many.
        The last part that does not fit into the gradient buffer leaves at most its own size unused there. The
        only rank of a run needs neither.
        """
        if self._groups.is_alone:
            return
        for sizes in (trained, frozen):
            outgoing = sizes.contributions + 2 * sizes.relayed
            missing = outgoing - self._elements(self._local_shard.least_gradients)
            if missing > 0:
                self._grow_overflow(min(outgoing, missing + max(sizes.contributions, sizes.relayed)))
        self._permuted.take(min(frozen.bucket, self._local_shard.parameter_places.elements))

    def reserve_layer_group(self, trained: StagingSizes, frozen: StagingSizes) -> None:
        """Allocate the staging of a single layer group of sharded parameters under any strategy."""
        if self._groups.is_alone:
            return
        self._grow_overflow(sum(sizes.contributions + 2 * sizes.relayed for sizes in (trained, frozen)))
        self._permuted.take(self._local_shard.parameter_places.largest_part)

    @property
    def staging(self) -> list[Tensor]:
        """The overflow of outgoing parameters, and the memory to permute frozen or sharded ones in."""
        return [self._overflow, self._permuted.room]

    def start(self, buckets: Sequence[GatheredBucket]) -> None:
        """Start every bucket, in the order of layer groups. Collective."""
        self.crossing = self._crossing(buckets)
        with self._groups.on_side_stream():
            previous: Sequence[StartedExchange] = ()
            capacity = self._elements(self._local_shard.common_gradients)
            for load in loads([bucket.transfer.room for bucket in buckets], capacity):
                for started in previous:
                    started.wait()
                previous = self._start_load(buckets[load.start : load.stop])

    def start_layer_group(self, buckets: Sequence[GatheredBucket]) -> None:
        """Start the buckets of one layer group; no other may be in flight. Collective."""
        with self._groups.on_side_stream():
            self._start_load(buckets)

    def is_awaited(self, layer_group: int) -> bool:
        """Whether parameters of this layer group, or of one before it, are still to be waited for."""
        return bool(self._in_flight) and self._in_flight[0].bucket.layer_group <= layer_group

    def wait_for(self, layer_group: int) -> None:
        """Wait for the parameters of this layer group and of all before it."""
        while self.is_awaited(layer_group):
            bucket, started = self._in_flight.popleft()
            started.wait()
            segments = bucket.transfer.inside.near
            if not are_in_order(segments):
                staging = self._permuted
                if bucket.trained and self._free_staging is not None:
                    staging = self._free_staging()
                # Through `.data`: autograd would take the parameters of earlier layer groups for changed.
                put_back(self._local_shard.parameter.data, segments, staging)

    def finish(self) -> None:
        """Wait for all parameters, outgoing ones included, and zero the gradient buffer."""
        while self._in_flight:
            self.wait_for(self._in_flight[-1].bucket.layer_group)
        self._local_shard.gradient.zero_()

    def _start_load(self, buckets: Sequence[GatheredBucket]) -> Sequence[StartedExchange]:
        """Start a load; return its exchanges inside the node."""
        between = self._groups.between
        if between is None:
            return [self._distribute(outgoing) for outgoing in self._from_owners(buckets)]
        with self._timers.crossing():
            return [self._distribute(outgoing) for outgoing in self._from_relays(between, buckets)]

    def _crossing(self, buckets: Sequence[GatheredBucket]) -> Crossing:
        """Count the exchanges between nodes."""
        if self._groups.between is None:
            return Crossing()
        counts = [(exchange.far_counts, exchange.near_counts) for exchange in map(_between, buckets)]
        # Elements for the own node stay there.
        own = self._groups.between.place
        counts = [(np.delete(sent, own), np.delete(received, own)) for sent, received in counts]
        elements = sum(max(int(sent.sum()), int(received.sum())) for sent, received in counts)
        return Crossing(
            elements * self._local_shard.parameter.itemsize,
            sum(int(np.count_nonzero(sent)) for sent, _ in counts),
        )

    def _distribute(self, outgoing: _Outgoing) -> StartedExchange:
        """Start a bucket from its source to the ranks of the node that need it."""
        bucket, source, far, relayed, staging = outgoing
        if relayed is not None:
            relayed.wait()
        exchange = bucket.transfer.inside
        # Through `.data`, as in `wait_for`.
        incoming = region(self._local_shard.parameter.data, exchange.near)
        packed = incoming if self._groups.inside.is_alone else staging
        pack(source, far, packed)
        started = self._groups.inside.start(packed, incoming, exchange.far_counts, exchange.near_counts)
        self._in_flight.append(_Flight(bucket, started))
        return started

    def _from_owners(self, buckets: Sequence[GatheredBucket]) -> Iterator[_Outgoing]:
        sizes = [int(one.transfer.inside.far_counts.sum()) for one in buckets]
        staging = self._split_staging([0] * len(buckets) if self._groups.is_alone else sizes)
        for bucket, room in zip(buckets, staging, strict=True):
            source, far = self._owned(bucket, bucket.transfer.inside)
            yield _Outgoing(bucket, source, far, None, room)

    def _owned(
        self, bucket: GatheredBucket, exchange: Exchange | PlacedExchange
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Return this rank's own values in an exchange: their buffer, and their segments in it."""
        return self._optimizer_shard.values_at(exchange.far, trained=bucket.trained)

    def _from_relays(self, group: ExchangeGroup, buckets: Sequence[GatheredBucket]) -> list[_Outgoing]:
        """Start every bucket of a load between nodes, from the owners to the relays."""
        exchanges = [_between(bucket) for bucket in buckets]
        staging = self._split_staging(
            [
                *(int(exchange.far_counts.sum()) for exchange in exchanges),
                *(bucket.transfer.relayed for bucket in buckets),
                *(int(bucket.transfer.inside.far_counts.sum()) for bucket in buckets),
            ]
        )
        count = len(buckets)
        leaving = []
        for index, (bucket, exchange) in enumerate(zip(buckets, exchanges, strict=True)):
            packed, relay, room = staging[index::count]
            pack(*self._owned(bucket, exchange), packed)
            relayed = group.start(packed, relay, exchange.far_counts, exchange.near_counts)
            leaving.append(_Outgoing(bucket, relay, bucket.transfer.inside.far, relayed, room))
        return leaving

    def _split_staging(self, sizes: Sequence[int]) -> list[Tensor]:
        """Split the gradient buffer, then the overflow, into pieces of these sizes."""
        ends = list(accumulate(sizes))
        outgoing = self._outgoing
        num_fitting = bisect_right(ends, len(outgoing))
        fitting = ends[num_fitting - 1] if num_fitting else 0
        missing = sum(sizes) - fitting
        self._grow_overflow(missing)
        rest = [*sizes[num_fitting:], len(self._overflow) - missing]
        return [
            *outgoing[:fitting].split(list(sizes[:num_fitting])),
            *self._overflow.split(rest)[:-1],
        ]

    @property
    def _outgoing(self) -> Tensor:
        """The gradient buffer as staging of parameters; empty for sharded parameters."""
        gradient = self._local_shard.gradient
        if self._free_staging is None:
            gradient = gradient[:0]
        return gradient.view(self._local_shard.parameter.dtype)

    def _elements(self, gradients: int) -> int:
        """Return the number of parameters that this many gradients have room for as staging."""
        if self._free_staging is None:
            return 0
        return gradients * self._local_shard.gradient.itemsize // self._local_shard.parameter.itemsize

    def _grow_overflow(self, elements: int) -> None:
        if elements > len(self._overflow):
            self._overflow = self._overflow.new_empty(elements)


def loads(sizes: Sequence[int], capacity: int) -> Iterator[range]:
    """Split buckets into loads that fit into the staging together, or are a single bucket.

    Args:
        sizes: Elements that each bucket stages.
        capacity: Elements that fit into the staging.

    Yields:
        Indices of the buckets of each load.
    """
    start = taken = 0
    for index, size in enumerate(sizes):
        if index > start and taken + size > capacity:
            yield range(start, index)
            start, taken = index, 0
        taken += size
    if start < len(sizes):
        yield range(start, len(sizes))


def _between(bucket: GatheredBucket) -> Exchange:
    exchange = bucket.transfer.between
    assert exchange is not None, "several nodes exchange between them"
    return exchange
