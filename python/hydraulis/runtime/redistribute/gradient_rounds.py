"""Gradient reduction of sharded gradients: after each micro-batch, through a buffer of two buckets.

**Rounds.**

- All ranks exchange the buckets in rounds, as many as the replica with most micro-batches has, each from the
  last bucket to the first.
- A replica takes part in the *last* rounds, one for each of its micro-batches: replicas tend to end together,
  and a replica of one long micro-batch would hold up all others in the first round.
- In the rounds before, its ranks contribute nothing, and add up the elements that they own.
- Owners add contributions by round, then as in `GradientReduction`, so sums are the same in every run.

**Waiting.**

- A backward waits before a layer group until the bucket that used the same part of the buffer has left.
  Schemes have no stages, so only the ranks of the same stage group wait for that backward, and they wait at
  the same place.
- All ranks launch exchanges in one order: gathers of whole parameters, then round by round. A rank launches
  the rounds without its contribution behind its first forward, and each bucket of the others behind its layer
  group's backward. Gathers of sharded parameters come in between (`parameter_rounds.py`).
- The first launch in this order that is not complete has all its ranks free (`launch_order.py`).
"""

from collections.abc import Mapping, Sequence

from hydraulis._core import BucketTransfer
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroups
from hydraulis.runtime.redistribute.gradient_reduction import GradientReduction
from hydraulis.runtime.redistribute.segments import region
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.places import BUFFERS, PlacedTransfer


def first_round(rounds: int, micro_batches: int) -> int:
    """Return the round of a replica's first micro-batch; it takes part in the following ones."""
    return rounds - min(micro_batches, rounds)


class GradientRounds(GradientReduction):
    """Reduces the gradients of every micro-batch to their owners.

    The buckets of all rounds are one list, those of the last round first: exchanges follow its reverse order.

    Args:
        groups: Groups of the exchanges.
        optimizer_shard: This rank's optimizer shard.
        local_shard: This rank's local shard, with a buffer of sharded gradients.
    """

    def __init__(
        self, groups: ExchangeGroups, optimizer_shard: OptimizerShard, local_shard: LocalShard
    ) -> None:
        super().__init__(groups, optimizer_shard, local_shard)
        self._num_buckets = 0
        # Buckets of this rank's rounds that are still to come, the current round's included.
        self._from_here = 0
        self._num_incomplete = 0
        # Last bucket in each part of the buffer.
        self._users: dict[int, int] = {}

    @property
    def _replaces(self) -> bool:
        # Each round contributes.
        return False

    def expect_rounds(
        self,
        rounds: Sequence[Sequence[BucketTransfer | PlacedTransfer]],
        accumulations: Mapping[int, int],
        first: int,
        *,
        is_paced: bool = False,
    ) -> None:
        """Expect the gradients of an iteration; no bucket may start yet.

        Args:
            rounds: This rank's exchanges of each trained bucket, in each round.
            accumulations: Number of accumulations into each bucket's gradients in one micro-batch.
            first: First round to which this rank contributes; the number of rounds if there is none.
            is_paced: Whether the caller starts each bucket of each round (`reduce_through`, `pass_round`).
        """
        self._num_buckets = len(rounds[0]) if rounds else 0
        self._from_here = (len(rounds) - first) * self._num_buckets
        pending = {
            start + bucket: count
            for start in range(0, self._from_here, self._num_buckets or 1)
            for bucket, count in accumulations.items()
        }
        self.expect([bucket for one in reversed(rounds) for bucket in one], pending)
        self._num_incomplete = len(self._buckets)
        self._users = {}
        if is_paced:
            self._from_here = len(self._buckets)

    def is_unclaimed(self, bucket: int) -> bool:
        """Return whether a bucket's first accumulation of a micro-batch is expected and has no buffer."""
        number = self._number(bucket)
        return number in self._pending and self._users.get(bucket % BUFFERS) != number

    def claim(self, bucket: int) -> None:
        """Free a bucket's part of the buffer for the first accumulation of a micro-batch, and zero it."""
        if not self.is_unclaimed(bucket):
            return
        number, part = self._number(bucket), bucket % BUFFERS
        if part in self._users:
            self._complete_through(self._users[part])
            # On CUDA computation waits for what the side stream has completed.
            self._groups.join()
        self._users[part] = number
        region(self._local_shard.gradient, self._buckets[number].inside.near).zero_()

    def accumulated(self, bucket: int) -> None:
        """Note one accumulation into a bucket's gradients; start the buckets that are complete by it."""
        super().accumulated(self._number(bucket))

    def end_round(self) -> None:
        """Note that the backward of a micro-batch has ended; start the buckets that are complete by it."""
        start = self._number(0)
        for bucket in reversed(range(self._num_buckets)):
            # A parameter without a gradient in this micro-batch.
            if start + bucket in self._pending:
                self.claim(bucket)
                del self._pending[start + bucket]
                self._advance()
        self._from_here = start
        self._advance()

    def reduce_through(self, bucket: int) -> None:
        """Start the buckets of the current round down to this one, and add them up inside the node."""
        self._complete_through(self._number(bucket))

    def pass_round(self) -> None:
        """Start the buckets that the current round has left, and add them up inside the node."""
        self.end_round()
        self._complete_through(self._from_here)

    def _number(self, bucket: int) -> int:
        """Return the place of a bucket of the current round in the list."""
        return self._from_here - self._num_buckets + bucket

    def _complete_through(self, number: int) -> None:
        """Start the buckets up to this one, and wait until they have left."""
        while self._num_unstarted > number:
            self._pending.pop(self._num_unstarted - 1, None)
            if self._inside.is_full:
                self._complete_in_node()
            self._start_next()
        while self._num_incomplete > number:
            self._complete_in_node()

    def _complete_in_node(self) -> None:
        super()._complete_in_node()
        self._num_incomplete -= 1
