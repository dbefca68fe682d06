"""The launches of every rank in one training step, derived from a plan without torch.

A rank's host launches computations, messages between stages, collectives of its stage group, and exchanges
of buckets. Each launch is in a stream and waits there for earlier launches; communication also waits for the
same launch on other ranks. `replay.py` runs the lists, and `test_launch_order.py` compares them with the
launches of real steps.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from hydraulis import Plan
from hydraulis._core import Backward, BucketTransfer, Forward, LayerSplit, Position, Scheme, SendReceive
from hydraulis.config.kinds import ShardingKind
from hydraulis.runtime.redistribute.gradient_rounds import first_round
from hydraulis.runtime.redistribute.launch_order import bucket_stages, startable_from
from hydraulis.runtime.redistribute.summed_exchanges import NUM_STAGING

Instruction = Forward | Backward | SendReceive
# Of an instruction list, the stage of each bucket, the rank's stage and the last micro-batch with sequences:
# the lowest bucket that may start before each instruction and after the last one.
Order = Callable[[Sequence[Instruction], Sequence[int], int, int], list[int]]


class Launch(NamedTuple):
    """One launch of a rank.

    Attributes:
        name: Name of the launch.
        stream: Stream of the work.
        waits: Indices of the rank's earlier launches that must have completed.
        meets: Name of the communication, the same on all its ranks; None of a computation.
        peers: Other ranks that must have started it too.
    """

    name: tuple[Hashable, ...]
    stream: str
    waits: tuple[int, ...]
    meets: Hashable = None
    peers: tuple[int, ...] = ()


class Step(NamedTuple):
    """A training step.

    Attributes:
        plan: Its plan.
        split: Layers of the stages.
        has_sequences: Of each replica, whether each micro-batch has any.
        ranks_per_node: Ranks of a node.
        loads: Buckets that are gathered together, in order.
        transfers: Of each rank, its exchanges of each bucket; None where all ranks of a group exchange.
        sharding: Tensors that ranks hold in parts.
        first_trained: First layer group with a trained parameter.
        has_frozen: Whether some parameters are frozen.
    """

    plan: Plan
    split: LayerSplit
    has_sequences: Sequence[Sequence[bool]]
    ranks_per_node: int
    loads: Sequence[range]
    transfers: Sequence[Sequence[BucketTransfer]] | None = None
    sharding: ShardingKind = "none"
    first_trained: int = 0
    has_frozen: bool = False


def safe_order(
    instructions: Sequence[Instruction], stages: Sequence[int], stage: int, last: int
) -> list[int]:
    """Start reductions as the runtime does."""
    return [len(stages), *startable_from(instructions, stages, stage, last)]


def launches(step: Step, order: Order = safe_order) -> list[list[Launch]]:
    """List the launches of every rank, with reductions started in this order."""
    ranks = [_Rank(step, rank) for rank in range(step.plan.cluster.gpus)]
    by_kind: dict[ShardingKind, Callable[[_Rank], list[Launch]]] = {
        "none": lambda rank: rank.launches(order),
        "gradients": _Rank.launches_in_rounds,
        "parameters": _Rank.launches_with_gathers,
    }
    return [by_kind[step.sharding](rank) for rank in ranks]


class _Rank:
    def __init__(self, step: Step, rank: int) -> None:
        self._rank, self._step = rank, step
        self._launches: list[Launch] = []
        # Of each stream, the launches that its next work waits for.
        self._after: dict[str, tuple[int, ...]] = {}
        self._position = step.plan.position(rank)
        self._stages = bucket_stages(step.split, self._position.scheme) if self._position else []
        self._num_exchanges = {"inside": 0, "between": 0}
        node, nodes = step.ranks_per_node, step.plan.cluster.gpus // step.ranks_per_node
        self._peers = {
            "inside": [rank // node * node + place for place in range(node)],
            "between": [rank % node + node * number for number in range(nodes)],
        }
        self._has_nodes = nodes > 1

    def launches(self, order: Order) -> list[Launch]:
        gathered = self._gather()
        reduction = _Reduction(self, self._step.loads[-1].stop)
        if self._position is None:
            reduction.finish()
            return self._launches
        replica = next(i for i, one in enumerate(self._step.plan.replicas) if self._rank in one.ranks)
        has_sequences = self._step.has_sequences[replica]
        last = max(index for index, one in enumerate(has_sequences) if one)
        instructions = self._step.plan.instructions(self._rank)
        own = [bucket for bucket, stage in enumerate(self._stages) if stage == self._position.stage]
        reduction.pending.update(own)
        startable = order(instructions, self._stages, self._position.stage, last)
        for lowest, instruction in zip(startable, instructions, strict=False):
            reduction.start_from(lowest)
            match instruction:
                case Forward(batch) if has_sequences[batch]:
                    for bucket in own:
                        self._wait("compute", gathered[bucket])
                        self._compute("forward", batch, bucket)
                case Backward(batch) if has_sequences[batch]:
                    for bucket in gathered:
                        self._wait("compute", gathered[bucket])
                    for bucket in reversed(own):
                        self._compute("backward", batch, bucket)
                        if batch == last:
                            reduction.pending.discard(bucket)
                            reduction.start_from(lowest)
                case SendReceive(peer, is_next, send, receive):
                    sends, receives = (one is not None and has_sequences[one] for one in (send, receive))
                    self._message(
                        peer, send if sends else None, receive if receives else None, is_next=is_next
                    )
        reduction.start_from(startable[-1])
        reduction.finish()
        return self._launches

    def launches_in_rounds(self) -> list[Launch]:
        """Launch the computations of a rank without stages, with each bucket behind its backward."""
        gathered = self._gather()
        batches, most = self._micro_batches()
        rounds = _Rounds(self, self._step.loads[-1].stop, most, len(batches))
        for batch in batches:
            for bucket in gathered:
                self._wait("compute", gathered[bucket])
                self._compute("forward", batch, bucket)
            rounds.start_from(0)
            for bucket in reversed(gathered):
                # The last operation of a layer group's backward is the accumulation.
                self._compute("backward", batch, bucket, before=partial(rounds.claim, bucket))
                rounds.accumulated(bucket)
            rounds.end_round()
        rounds.finish()
        return self._launches

    def launches_with_gathers(self) -> list[Launch]:
        """Launch the computations of a rank without stages, each behind the gather of its layer group."""
        batches, most = self._micro_batches()
        last = self._step.split.stage_layers(Scheme("<1>"))[0] + 1
        rounds = _PacedRounds(self, last + 1, most)
        for _ in range(first_round(most, len(batches))):
            for bucket in range(last + 1):
                self._wait("compute", *self._start(bucket))
            for bucket in reversed(range(self._step.first_trained, last)):
                self._wait("compute", *self._exchange_before(rounds, bucket, last))
            rounds.pass_round()
        for batch in batches:
            arriving = self._start(0)
            for bucket in range(last + 1):
                self._wait("compute", *arriving)
                arriving = self._start(bucket + 1) if bucket < last else ()
                self._compute("forward", batch, bucket)
            for bucket in reversed(range(self._step.first_trained, last + 1)):
                self._wait("compute", *arriving)
                rounds.claim(bucket)
                arriving = self._exchange_before(rounds, bucket, last)
                self._compute("backward", batch, bucket)
            rounds.pass_round()
        rounds.finish()
        return self._launches

    def _micro_batches(self) -> tuple[list[int], int]:
        """Return this rank's micro-batches with sequences, and the most of any replica."""
        replicas = zip(self._step.plan.replicas, self._step.has_sequences, strict=True)
        own = next((has_any for replica, has_any in replicas if self._rank in replica.ranks), [])
        batches = [batch for batch, has_any in enumerate(own) if has_any]
        return batches, max(map(sum, self._step.has_sequences))

    def _start(self, bucket: int) -> tuple[int, ...]:
        """Launch the gather of a layer group; return the launches that bring it."""
        self.wait_beside()
        number = 2 if self._step.has_frozen else 1
        relayed = [self.exchange("between", bucket) for _ in range(number) if self._has_nodes]
        arriving = []
        for place in range(number):
            if relayed:
                self.wait_for(relayed[place])
            arriving.append(self.exchange("inside", bucket))
        return tuple(arriving)

    def _exchange_before(self, rounds: "_PacedRounds", bucket: int, last: int) -> tuple[int, ...]:
        """Launch the exchanges in front of a backward; return the one that brings the next layer group."""
        if bucket < last:
            rounds.reduce_through(bucket + 1)
        return self._start(bucket - 1) if max(1, self._step.first_trained) < bucket < last else ()

    def exchange(self, kind: str, bucket: int) -> int:
        """Launch an exchange of the rank's node or rail behind the side stream, and return its index."""
        number, peers = self._num_exchanges[kind], self._peers[kind]
        self._num_exchanges[kind] += 1
        if self._step.transfers is not None:
            transfer = self._step.transfers[self._rank][bucket]
            counts = transfer.inside if kind == "inside" else transfer.between
            assert counts is not None
            flows = counts.near_counts + counts.far_counts
            met = [peer for peer, count in zip(peers, flows, strict=True) if count]
        else:
            met = peers
        meets = (kind, number, peers[0])
        return self._launch(
            (kind, number), kind, meets, tuple(peer for peer in met if peer != self._rank), "side"
        )

    def wait_beside(self, stream: str = "compute") -> None:
        """Let the side stream wait for another stream."""
        self._wait("side", *self._after.get(stream, ()))

    def wait_for_side(self) -> None:
        """Let computation wait for the side stream."""
        self._wait("compute", *self._after.get("side", ()))

    def wait_for(self, index: int) -> None:
        """Let the side stream wait for a launch."""
        self._wait("side", index)

    @property
    def has_nodes(self) -> bool:
        return self._has_nodes

    def _gather(self) -> dict[int, int]:
        """Launch the gathers; return the launch that brings each bucket."""
        gathered: dict[int, int] = {}
        previous: list[int] = []
        for load in self._step.loads:
            for index in previous:
                self.wait_for(index)
            relayed = {bucket: self.exchange("between", bucket) for bucket in load if self._has_nodes}
            previous = []
            for bucket in load:
                if bucket in relayed:
                    self.wait_for(relayed[bucket])
                previous.append(self.exchange("inside", bucket))
                gathered[bucket] = previous[-1]
        return gathered

    def _compute(self, what: str, batch: int, bucket: int, before: Callable[[], None] = lambda: None) -> None:
        """Compute a layer group, after a collective of the stage group if it has several ranks."""
        assert self._position is not None
        position: Position = self._position
        group = sorted({*position.tensor_group(self._rank), *position.context_group(self._rank)})
        if len(group) > 1:
            for kind, ranks in (
                ("tensor", position.tensor_group(self._rank)),
                ("context", position.context_group(self._rank)),
            ):
                peers = tuple(peer for peer in ranks if peer != self._rank)
                if peers:
                    meets = (kind, min(ranks), tuple(ranks), what, batch, bucket)
                    name = (kind, what, batch, bucket)
                    self._wait("compute", self._launch(name, kind, meets, peers, "compute"))
        before()
        self._launch((what, batch, bucket), "compute")

    def _message(self, peer: int, send: int | None, receive: int | None, *, is_next: bool) -> None:
        if send is None and receive is None:
            return
        crossing = (send, receive) if is_next else (receive, send)
        meets = ("message", *sorted((self._rank, peer)), *crossing)
        index = self._launch(("message", peer, send, receive), "messages", meets, (peer,), "compute")
        if receive is not None:
            self._wait("compute", index)

    def _launch(
        self,
        name: tuple[Hashable, ...],
        stream: str,
        meets: Hashable = None,
        peers: tuple[int, ...] = (),
        behind: str | None = None,
    ) -> int:
        """Launch work in a stream, behind the work of another one so far; return its index."""
        waits = {*self._after.get(stream, ()), *(self._after.get(behind, ()) if behind else ())}
        self._launches.append(Launch(name, stream, tuple(sorted(waits)), meets, peers))
        self._after[stream] = (len(self._launches) - 1,)
        return len(self._launches) - 1

    def _wait(self, stream: str, *indices: int) -> None:
        self._after[stream] = tuple({*self._after.get(stream, ()), *indices})


class _Reduction:
    """The reductions of a rank: the order of `GradientReduction` on a side stream."""

    def __init__(self, rank: _Rank, num_buckets: int) -> None:
        self.pending: set[int] = set()
        self._rank = rank
        self._num_unstarted = num_buckets
        self._in_node: deque[tuple[int, int]] = deque()
        self._at_owner: deque[int] = deque()

    def start_from(self, lowest: int) -> None:
        while self._num_unstarted > lowest and self._num_unstarted - 1 not in self.pending:
            self._start_next()

    def finish(self) -> None:
        self.pending.clear()
        self.start_from(0)
        while self._in_node:
            self._complete_in_node()

    def _start_next(self) -> None:
        if len(self._in_node) == NUM_STAGING:
            self._complete_in_node()
        self._num_unstarted -= 1
        self._rank.wait_beside()
        self._in_node.append((self._num_unstarted, self._rank.exchange("inside", self._num_unstarted)))

    def _complete_in_node(self) -> None:
        if len(self._at_owner) == NUM_STAGING:
            self._rank.wait_for(self._at_owner.popleft())
        bucket, index = self._in_node.popleft()
        self._rank.wait_beside()
        self._rank.wait_for(index)
        if self._rank.has_nodes:
            self._at_owner.append(self._rank.exchange("between", bucket))


class _Rounds(_Reduction):
    """The reductions of a rank in rounds: the order of `GradientRounds` on a side stream."""

    def __init__(self, rank: _Rank, num_buckets: int, rounds: int, micro_batches: int) -> None:
        super().__init__(rank, rounds * num_buckets)
        self._size = num_buckets
        self._here = (rounds - first_round(rounds, micro_batches)) * num_buckets
        self.pending.update(range(self._here))
        self._users: dict[int, int] = {}
        self._num_incomplete = rounds * num_buckets

    def claim(self, bucket: int) -> None:
        if bucket % 2 in self._users:
            last = self._users[bucket % 2]
            assert self._num_unstarted <= last, "buckets leave in order"
            while self._num_incomplete > last:
                self._complete_in_node()
            self._rank.wait_for_side()
        self._users[bucket % 2] = self._here - self._size + bucket

    def accumulated(self, bucket: int) -> None:
        self.pending.discard(self._here - self._size + bucket)
        self.start_from(0)

    def end_round(self) -> None:
        self._here -= self._size

    def _complete_in_node(self) -> None:
        super()._complete_in_node()
        self._num_incomplete -= 1


class _PacedRounds(_Rounds):
    """The reductions of a rank in rounds whose buckets the rank starts one by one."""

    def __init__(self, rank: _Rank, num_buckets: int, rounds: int) -> None:
        super().__init__(rank, num_buckets, rounds, 0)
        self._here = rounds * num_buckets

    def reduce_through(self, bucket: int) -> None:
        """Reduce the buckets down to this one of the current round, as far as the node."""
        last = self._here - self._size + bucket
        self.start_from(last)
        while self._num_incomplete > last:
            self._complete_in_node()

    def pass_round(self) -> None:
        """Reduce all of the round."""
        self.reduce_through(0)
        self.end_round()
