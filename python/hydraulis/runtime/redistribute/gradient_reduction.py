"""Gradient reduction: bucket by bucket to the owners, while backward still runs."""

from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor

from hydraulis._core import BucketTransfer
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroups
from hydraulis.runtime.redistribute.staging import Staging, StagingSizes
from hydraulis.runtime.redistribute.summed_exchanges import NUM_STAGING, SummedExchanges
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.places import PlacedTransfer


class GradientReduction:
    """Reduces every trained bucket's gradients to their owners, from the last bucket to the first.

    That is the order of backward. A bucket starts once `start_from` permits it, this rank's last backward has
    passed its layer group, and the buckets behind it have started. Gradients leave from the gradient buffer,
    where they are first put in the order of their owners. The owner adds contributions in rank order in the
    gradient's dtype, so a run is bit-reproducible. On several nodes the rank with the owner's place in its
    node adds up its node's contributions, and sends the sums to the owner, which adds them in the order of
    nodes.

    The only rank of a node adds its contributions without staging, and the only rank of a run copies them.
    Otherwise received contributions of two buckets are staged, and a bucket starts only if staging is free.
    Computation never waits for staging, because another rank's start may depend on that computation; so ranks
    start buckets at different moments, in one order. With a side stream the next bucket first completes the
    one before the last, and waits there.

    Args:
        groups: Groups of the exchanges; every rank starts its gathers of whole parameters there before its
            reductions.
        optimizer_shard: This rank's optimizer shard, whose `gradient` receives the sums.
        local_shard: This rank's local shard, from whose `gradient` contributions leave.
    """

    def __init__(
        self, groups: ExchangeGroups, optimizer_shard: OptimizerShard, local_shard: LocalShard
    ) -> None:
        self._groups = groups
        self._sums = optimizer_shard.gradient
        self._local_shard = local_shard
        self._inside = SummedExchanges(groups.inside, self._sums)
        self._between = SummedExchanges(groups.between, self._sums) if groups.between else None
        # Sums of the node's contributions: of the buckets inside the node, and of those between nodes.
        self._relays = deque(Staging(self._sums[:0]) for _ in range(2 * NUM_STAGING))
        self._in_node: deque[BucketTransfer | PlacedTransfer] = deque()
        self._buckets: Sequence[BucketTransfer | PlacedTransfer] = ()
        # For each bucket, the number of accumulations that are still to come.
        self._pending: dict[int, int] = {}
        self._num_unstarted = 0
        # The lowest bucket that may start.
        self._startable_from = 0

    def reserve(self, sizes: StagingSizes) -> None:
        """Allocate the staging that any strategy needs; the only rank of a run needs none."""
        if self._groups.is_alone:
            return
        self._inside.reserve(sizes.contributions)
        if self._between is not None:
            self._between.reserve(sizes.relayed)
            for relay in self._relays:
                relay.take(sizes.relayed)

    @property
    def _replaces(self) -> bool:
        """Whether each element of the sums receives one contribution."""
        return self._groups.is_alone

    @property
    def staging(self) -> list[Tensor]:
        """The staging buffers, relays included."""
        if self._between is None:
            return self._inside.staging
        relays = [relay.room for relay in self._relays]
        return [*self._inside.staging, *self._between.staging, *relays]

    @property
    def free_staging(self) -> Staging:
        """A staging buffer, free while no gradients are in flight."""
        assert not self._in_node, "gradients are in flight"
        return self._inside.next_staging

    def expect(
        self, buckets: Sequence[BucketTransfer | PlacedTransfer], accumulations: Mapping[int, int]
    ) -> None:
        """Expect the gradients of an iteration; no bucket may start yet.

        Args:
            buckets: This rank's exchanges of each trained bucket.
            accumulations: Number of accumulations into each bucket's gradients over all micro-batches; a
                bucket outside this rank's stage has no entry.
        """
        if not self._replaces:
            self._sums.zero_()
        self._buckets = buckets
        self._pending = dict(accumulations)
        self._num_unstarted = self._startable_from = len(buckets)

    def start_from(self, bucket: int) -> None:
        """Permit this bucket and those behind it to start; start those that are complete."""
        self._startable_from = min(self._startable_from, bucket)
        self._advance()

    def accumulated(self, bucket: int) -> None:
        """Note one accumulation into a bucket's gradients; start the buckets that are complete by it."""
        if bucket in self._pending:
            self._pending[bucket] -= 1
            if self._pending[bucket] == 0:
                del self._pending[bucket]
                self._advance()

    def end_accumulation(self) -> None:
        """Note that this rank's last backward has ended; start the buckets that are complete by it."""
        self._pending.clear()
        self._advance()

    def finish(self) -> None:
        """Start the remaining buckets, and wait until every sum is at its owner."""
        self._pending.clear()
        while self._num_unstarted:
            if self._inside.is_full:
                self._complete_in_node()
            self._start_next()
        while len(self._inside):
            self._complete_in_node()
        while self._between is not None and len(self._between):
            self._complete_at_owner()
        self._groups.join()

    def _advance(self) -> None:
        """Start the next buckets as far as permitted and complete, while staging is free."""
        while self._num_unstarted > self._startable_from and self._num_unstarted - 1 not in self._pending:
            if self._inside.is_full and not self._free_staging():
                return
            self._start_next()

    def _start_next(self) -> None:
        self._num_unstarted -= 1
        bucket = self._buckets[self._num_unstarted]
        with self._groups.on_side_stream():
            target = self._sums
            if self._between is not None:
                self._relays.rotate(-1)
                target = self._relays[-1].take(bucket.relayed).zero_()
            self._inside.start(bucket.inside, self._local_shard.gradient, target)
        self._in_node.append(bucket)

    def _free_staging(self) -> bool:
        """Complete the oldest bucket in the node if that holds up no computation; return whether it did."""
        if not self._groups.has_side_stream:
            waits_between = (
                self._between is not None and self._between.is_full and not self._between.has_arrived
            )
            if waits_between or not self._inside.has_arrived:
                return False
        self._complete_in_node()
        return True

    def _complete_in_node(self) -> None:
        """Add up the oldest bucket inside the node, and send the sums on if another node owns them."""
        if self._between is not None and self._between.is_full:
            self._complete_at_owner()
        bucket = self._in_node.popleft()
        with self._groups.on_side_stream():
            sums = self._inside.complete(replaces=self._replaces)
            if self._between is not None and bucket.between is not None:
                self._between.start(bucket.between, sums, self._sums)

    def _complete_at_owner(self) -> None:
        assert self._between is not None
        with self._groups.on_side_stream():
            self._between.complete()
