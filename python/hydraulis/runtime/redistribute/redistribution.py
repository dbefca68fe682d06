"""Moves parameters from their owners to the local shards, and gradients back, while the rank computes.

Each bucket is one uneven all-to-all each way. All ranks start them in one order: without sharding, parameter
gathers from the first bucket to the last, then gradient reductions from the last to the first. A rank sends
an element only to ranks that need it, so the volume is that of a reduce-scatter and an all-gather.
Parameters travel in the model's dtype, gradients in the dtype of their sums. Frozen parameters are gathered
only when some rank's position changes, or with each layer group where parameters are sharded; they have no
gradients.

A stage's computation waits only for its own layer groups. Hooks see to that, registered in `register_hooks`:

- a forward pre-hook on the first module of each layer group waits for the group's parameters;
- a hook on each trained parameter counts its gradient accumulations, so that the last backward through a
  layer group starts its gradient reduction, under sharded gradients each backward (`gradient_rounds.py`);
- under sharded gradients, a hook before a layer group's backward waits until their buffer is free.

Under sharded parameters the first and the last kind also gather the next layer group (`parameter_rounds.py`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from hydraulis._core import Backward, BucketTransfer, Cluster, Plan, Position, Scheme, transfer
from hydraulis.runtime.pipeline.rank_work import RankWork
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import StepTimers
from hydraulis.runtime.placement import ByPlacement, Placement, placement_of
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, ExchangeGroups
from hydraulis.runtime.redistribute.gradient_reduction import GradientReduction
from hydraulis.runtime.redistribute.gradient_rounds import GradientRounds, first_round
from hydraulis.runtime.redistribute.launch_order import bucket_stages, startable_from
from hydraulis.runtime.redistribute.parameter_gather import Crossing, GatheredBucket, ParameterGather
from hydraulis.runtime.redistribute.parameter_rounds import ParameterRounds
from hydraulis.runtime.redistribute.staging import StagingSizes
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.places import PlacedTransfer

# Rounds of the last placements whose transfers are kept.
_MOST_ROUNDS = 16


class _Round(NamedTuple):
    """This rank's exchanges in a round.

    Attributes:
        gradients: Exchanges of each trained bucket.
        parameters: Buckets of each layer group's parameters: the trained one, and the frozen one if the model
            has any.
    """

    gradients: list[BucketTransfer | PlacedTransfer]
    parameters: list[list[GatheredBucket]]


class Redistribution:
    """Parameter gathers and gradient reductions of one rank.

    Args:
        groups: Groups of the exchanges, used for nothing else.
        optimizer_shard: This rank's optimizer shard.
        local_shard: This rank's local shard.
        timers: Timers of the time that goes to communication alone.
    """

    def __init__(
        self,
        groups: ExchangeGroups,
        optimizer_shard: OptimizerShard,
        local_shard: LocalShard,
        timers: StepTimers,
    ) -> None:
        self._parameters = optimizer_shard.parameters
        self._layout = optimizer_shard.layout
        self._local_shard = local_shard
        has_sharded_gradients = local_shard.gradient_places.starts is not None
        has_sharded_parameters = local_shard.parameter_places.starts is not None
        # Under sharded gradients, the reduction with its rounds.
        self._rounds = GradientRounds(groups, optimizer_shard, local_shard) if has_sharded_gradients else None
        self._reduction = self._rounds or GradientReduction(groups, optimizer_shard, local_shard)
        free_staging = None if has_sharded_parameters else lambda: self._reduction.free_staging
        self._gather = ParameterGather(groups, optimizer_shard, local_shard, free_staging, timers)
        self._parameter_rounds = (
            ParameterRounds(
                self._gather,
                self._rounds,
                self._parameters.num_layer_groups,
                self._parameters.first_trained_layer_group,
            )
            if self._rounds is not None and has_sharded_parameters
            else None
        )
        self._transfers = ByPlacement[list[BucketTransfer]]()
        self._placed = ByPlacement[_Round](_MOST_ROUNDS)
        self._has_side_stream = groups.has_side_stream
        self._between_nodes = groups.between
        self._timers = timers
        # By instruction: the lowest bucket that may start after it.
        self._startable_from: list[int] = []
        self._last_backward = -1
        # Instructions that are backwards of micro-batches with sequences.
        self._backwards: set[int] = set()
        # Placement for which the frozen parameters were gathered.
        self._frozen_placement: Placement | None = None

    def reserve(self, cluster: Cluster, schemes: Sequence[Scheme]) -> None:
        """Allocate the staging that any strategy of these schemes needs."""
        trained, frozen = (
            StagingSizes.from_schemes(self._parameters, self._layout, cluster, schemes, trained=trained)
            for trained in (True, False)
        )
        self._reduction.reserve(trained)
        if self._parameter_rounds is None:
            self._gather.reserve(trained, frozen)
        else:
            self._gather.reserve_layer_group(trained, frozen)

    @property
    def between_nodes(self) -> ExchangeGroup | None:
        """The group of this rank's rail; None on one node."""
        return self._between_nodes

    @property
    def crossing(self) -> Crossing:
        """This rank's exchanges between nodes in the last parameter gather."""
        return self._gather.crossing

    @property
    def staging(self) -> list[Tensor]:
        """All staging buffers."""
        return [*self._reduction.staging, *self._gather.staging]

    def register_hooks(self, stage: Stage) -> None:
        """Let a stage wait for its parameters and report its gradients whenever it computes.

        Args:
            stage: Stage of this rank, built once.
        """
        for layer_group, module in stage.layer_groups():
            module.register_forward_pre_hook(partial(self._before_forward, layer_group))
        for layer_group, parameter in self._trained_parameters(stage):
            parameter.register_post_accumulate_grad_hook(partial(self._after_accumulation, layer_group))
        if self._rounds is not None:
            self._register_claims(stage)

    def _register_claims(self, stage: Stage) -> None:
        """Let a backward free a layer group's buffer before it computes the first of the group's gradients.

        Products and lookups may add to a weight's gradient directly, so a layer claims its buffer at the
        gradient of its output. The head's weight is used by the loss, and claims it at its own gradient.
        """
        claims = {number: partial(self._before_accumulation, number) for number, _ in stage.layer_groups()}
        for number, module in stage.layer_groups():
            if module is not stage.module.norm:
                module.register_forward_hook(partial(_at_gradient, claims[number]))
        for number, parameter in self._trained_parameters(stage):
            if number == self._parameters.num_layer_groups - 1:
                parameter.register_hook(claims[number])

    def start_parameter_gather(self, plan: Plan, work: RankWork | None = None) -> None:
        """Start gathering all parameters, and expect the gradients of the micro-batches. Collective.

        Args:
            plan: The iteration's plan, the same on every rank.
            work: This rank's part of the plan; None if gradients come from elsewhere than `run_pipeline`.
        """
        self._startable_from, accumulations = [], {}
        if work is not None and work.stage is not None and work.position is not None:
            self._expect_launches(work, work.position)
            groups = Counter(number for number, _ in self._trained_parameters(work.stage))
            each = 1 if self._rounds else work.num_micro_batches
            accumulations = {number: count * each for number, count in groups.items()}
        number = 0 if work is None else work.num_micro_batches
        with self._timers.transferring():
            if self._parameter_rounds is None:
                self._gather.start(self._buckets(plan))
            if self._rounds is None:
                trained, _ = self._trained_and_frozen(self._all_transfers(plan))
                self._reduction.expect(trained, accumulations)
                return
            rounds = self._rounds_of(plan)
            first = first_round(len(rounds), number)
            is_paced = self._parameter_rounds is not None
            self._rounds.expect_rounds(
                [one.gradients for one in rounds], accumulations, first, is_paced=is_paced
            )
            if self._parameter_rounds is not None:
                self._parameter_rounds.expect([one.parameters for one in rounds], first, has_backward=True)

    def gather_parameters(self, plan: Plan) -> None:
        """Gather all parameters, and expect no gradients; sharded ones come with each forward. Collective."""
        if self._parameter_rounds is None:
            self._gather.start(self._buckets(plan))
            self._gather.finish()

    @contextmanager
    def forwards(self, plan: Plan, num_micro_batches: int) -> Iterator[None]:
        """Let the forwards inside, which have no backward, gather sharded parameters. Collective.

        Args:
            plan: The plan of the forwards. `gather_parameters` has gathered its parameters, unless sharded.
            num_micro_batches: Number of this rank's micro-batches with sequences.
        """
        if self._parameter_rounds is None:
            yield
            return
        rounds = self._rounds_of(plan)
        first = first_round(len(rounds), num_micro_batches)
        self._parameter_rounds.expect([one.parameters for one in rounds], first, has_backward=False)
        yield
        self._parameter_rounds.finish()

    def finish_parameter_gather(self) -> None:
        """Wait for all parameters, and zero the gradients: before the first backward.

        Sharded parameters come with each forward and backward.
        """
        if self._parameter_rounds is None:
            with self._timers.transferring():
                self._gather.finish()

    def launched(self, instruction: int) -> None:
        """Start the buckets that may start once an instruction of `run_pipeline` is launched.

        Args:
            instruction: Index in the rank's instruction list.
        """
        if not self._startable_from:
            return
        if self._parameter_rounds is not None:
            if instruction in self._backwards:
                with self._reducing():
                    self._parameter_rounds.end_round()
            return
        if self._rounds is not None and instruction == 0:
            # The rounds before this rank's first one use the staging in which parameters are permuted.
            self.finish_parameter_gather()
        with self._reducing():
            self._reduction.start_from(self._startable_from[instruction])
            if self._rounds is not None:
                if instruction in self._backwards:
                    self._rounds.end_round()
            elif instruction == self._last_backward:
                self._reduction.end_accumulation()

    def finish_gradient_reduction(self) -> None:
        """Launch the rounds that are left, and wait until every gradient is at its owner. Collective."""
        with self._timers.transferring():
            if self._parameter_rounds is not None:
                self._parameter_rounds.finish()
            self._reduction.finish()

    def forget_frozen(self) -> None:
        """Gather frozen parameters again at the next step: the local shard was overwritten. Collective."""
        self._frozen_placement = None

    def _all_transfers(self, plan: Plan) -> list[BucketTransfer]:
        """List the exchanges of each trained bucket, then of each frozen one, with all replicas."""
        return self._transfers.get(placement_of(plan), lambda: transfer(self._layout, plan, dist.get_rank()))

    def _buckets(self, plan: Plan) -> list[GatheredBucket]:
        """List the buckets to gather by layer group; frozen ones only if a rank has moved."""
        placement = placement_of(plan)
        trained, frozen = self._trained_and_frozen(self._all_transfers(plan))
        buckets = [GatheredBucket(number, True, one) for number, one in enumerate(trained)]
        if placement != self._frozen_placement:
            self._frozen_placement = placement
            buckets += [GatheredBucket(number, False, one) for number, one in enumerate(frozen)]
        return sorted(buckets, key=attrgetter("layer_group"))

    def _trained_and_frozen(
        self, transfers: list[BucketTransfer]
    ) -> tuple[list[BucketTransfer], list[BucketTransfer]]:
        """Split the exchanges into those of the trained buckets and those of the frozen ones."""
        count = self._parameters.num_layer_groups
        return transfers[:count], transfers[count:]

    def _rounds_of(self, plan: Plan) -> list[_Round]:
        """List the exchanges of each round; in the last one all replicas take part."""
        counts = [sum(map(bool, replica.micro_batches)) for replica in plan.replicas]
        num_rounds = max(counts)
        placement = placement_of(plan)
        rounds = []
        for number in range(num_rounds):
            is_used = [first_round(num_rounds, count) <= number for count in counts]
            rounds.append(
                self._placed.get(placement._replace(is_used=is_used), partial(self._round, plan, is_used))
            )
        return rounds

    def _round(self, plan: Plan, is_used: Sequence[bool]) -> _Round:
        """Place the exchanges of a round with these replicas in the sharded buffers."""
        transfers = self._all_transfers(plan)
        if is_used != placement_of(plan).is_used:
            transfers = transfer(self._layout, plan, dist.get_rank(), is_used)
        trained, frozen = self._trained_and_frozen(transfers)
        gradients, parameters = self._local_shard.gradient_places, self._local_shard.parameter_places
        gathered = [
            [GatheredBucket(number, True, parameters.of_transfer(number, one))]
            for number, one in enumerate(trained)
        ]
        for number, one in enumerate(frozen):
            before = int(trained[number].inside.near_counts.sum())
            placed = parameters.of_transfer(number, one, elements_before=before)
            gathered[number].append(GatheredBucket(number, False, placed))
        return _Round([gradients.of_transfer(number, one) for number, one in enumerate(trained)], gathered)

    def _trained_parameters(self, stage: Stage) -> Iterator[tuple[int, nn.Parameter]]:
        """Yield each trained parameter of a stage with the number of its bucket, which is a layer group."""
        table = self._parameters.table.parameters
        for index, parameter in stage.trained.items():
            yield table[index].layer_groups[0], parameter

    def _expect_launches(self, work: RankWork, position: Position) -> None:
        """Look up the order of the list's launches and the reductions among them."""
        last = work.last_micro_batch
        stages = bucket_stages(self._parameters.table.split, position.scheme)
        self._startable_from = startable_from(work.instructions, stages, position.stage, last)
        backwards = [index for index, one in enumerate(work.instructions) if isinstance(one, Backward)]
        # Backwards are in the order of micro-batches.
        self._last_backward = backwards[last]
        self._backwards = {backwards[index] for index, one in enumerate(work.micro_batches) if one}

    def _before_forward(self, layer_group: int, _module: nn.Module, _args: object) -> None:
        if self._parameter_rounds is not None:
            if self._parameter_rounds.is_expecting:
                with self._timers.transferring():
                    self._parameter_rounds.before_forward(layer_group)
        elif self._gather.is_awaited(layer_group):
            with self._timers.transferring():
                self._gather.wait_for(layer_group)

    def _before_accumulation(self, layer_group: int, _gradient: object) -> None:
        assert self._rounds is not None
        # Computation waits here on a side stream too. A backward outside of an iteration, such as one that a
        # profile times, waits for nothing, and nobody reads these timers after it.
        if self._parameter_rounds is not None:
            if self._parameter_rounds.is_expecting:
                with self._timers.transferring():
                    self._parameter_rounds.before_backward(layer_group)
        elif self._rounds.is_unclaimed(layer_group):
            with self._timers.transferring():
                self._rounds.claim(layer_group)

    def _after_accumulation(self, layer_group: int, _parameter: object) -> None:
        with self._reducing():
            self._reduction.accumulated(layer_group)

    def _reducing(self) -> AbstractContextManager[None]:
        """Time the reductions that hold up this thread; on a side stream none does."""
        return nullcontext() if self._has_side_stream else self._timers.transferring()


def _at_gradient(
    call: Callable[[object], None], _module: nn.Module, _arguments: object, output: Tensor
) -> None:
    """Call a function before the backward of a module that has returned this output."""
    if output.requires_grad:
        output.register_hook(call)
