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
  layer group starts its gradient reduction.

`sharded_redistribution.py` has the exchanges of sharded gradients and parameters.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter

from torch import Tensor, nn

from hydraulis._core import Cluster, Plan, Scheme
from hydraulis.runtime.pipeline.rank_work import RankWork
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import StepTimers
from hydraulis.runtime.placement import Placement, placement_of
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, ExchangeGroups
from hydraulis.runtime.redistribute.gradient_reduction import GradientReduction
from hydraulis.runtime.redistribute.launch_order import LaunchPoints
from hydraulis.runtime.redistribute.parameter_gather import Crossing, GatheredBucket, ParameterGather
from hydraulis.runtime.redistribute.plan_transfers import PlanTransfers
from hydraulis.runtime.redistribute.staging import StagingSizes


class Redistribution:
    """Parameter gathers and gradient reductions of a rank that holds its whole stage.

    Args:
        groups: Groups of the exchanges, used for nothing else.
        transfers: Exchanges of this rank under each plan.
        gather: Gather of parameters.
        reduction: Reduction of gradients.
        timers: Timers of the time that goes to communication alone.
    """

    def __init__(
        self,
        groups: ExchangeGroups,
        transfers: PlanTransfers,
        gather: ParameterGather,
        reduction: GradientReduction,
        timers: StepTimers,
    ) -> None:
        self._transfers = transfers
        self._parameters = transfers.parameters
        self._gather = gather
        self._reduction = reduction
        self._has_side_stream = groups.has_side_stream
        self._between_nodes = groups.between
        self._timers = timers
        # None without a stage.
        self._launch_points: LaunchPoints | None = None
        # Placement for which the frozen parameters were gathered.
        self._frozen_placement: Placement | None = None

    def reserve(self, cluster: Cluster, schemes: Sequence[Scheme]) -> None:
        """Allocate the staging that any strategy of these schemes needs."""
        trained, frozen = (
            StagingSizes.from_schemes(
                self._parameters, self._transfers.layout, cluster, schemes, trained=trained
            )
            for trained in (True, False)
        )
        self._reduction.reserve(trained)
        self._reserve_gather(trained, frozen)

    def _reserve_gather(self, trained: StagingSizes, frozen: StagingSizes) -> None:
        self._gather.reserve(trained, frozen)

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

    def start_parameter_gather(self, plan: Plan, work: RankWork | None = None) -> None:
        """Start gathering all parameters, and expect the gradients of the micro-batches. Collective.

        Args:
            plan: The iteration's plan, the same on every rank.
            work: This rank's part of the plan; None if gradients come from elsewhere than `run_pipeline`.
        """
        self._launch_points = LaunchPoints.of(work, self._parameters.table.split)
        with self._timers.transferring():
            self._start_gather(plan)
            self._expect(plan, work)

    def _start_gather(self, plan: Plan) -> None:
        """Start the buckets in the order of layer groups; frozen ones only if a rank has moved."""
        placement = placement_of(plan)
        trained, frozen = self._transfers.of_step(plan)
        buckets = [GatheredBucket(number, True, one) for number, one in enumerate(trained)]
        if placement != self._frozen_placement:
            self._frozen_placement = placement
            buckets += [GatheredBucket(number, False, one) for number, one in enumerate(frozen)]
        self._gather.start(sorted(buckets, key=attrgetter("layer_group")))

    def _expect(self, plan: Plan, work: RankWork | None) -> None:
        """Expect the gradients of the micro-batches."""
        trained, _ = self._transfers.of_step(plan)
        count = 0 if work is None else work.num_micro_batches
        each = self._accumulations(work)
        self._reduction.expect(trained, {number: one * count for number, one in each.items()})

    def _accumulations(self, work: RankWork | None) -> Counter[int]:
        """Count the accumulations of a micro-batch into each bucket's gradients."""
        if work is None or work.stage is None:
            return Counter()
        return Counter(number for number, _ in self._trained_parameters(work.stage))

    def gather_parameters(self, plan: Plan) -> None:
        """Gather all parameters, and expect no gradients; sharded ones come with each forward. Collective."""
        self._start_gather(plan)
        self._gather.finish()

    @contextmanager
    def forwards(self, plan: Plan, num_micro_batches: int) -> Iterator[None]:  # noqa: ARG002  sharded ones use them
        """Let the forwards inside, which have no backward, gather sharded parameters. Collective.

        Args:
            plan: The plan of the forwards. `gather_parameters` has gathered its parameters, unless sharded.
            num_micro_batches: Number of this rank's micro-batches with sequences.
        """
        yield

    def finish_parameter_gather(self) -> None:
        """Wait for all parameters, and zero the gradients: before the first backward.

        Sharded parameters come with each forward and backward.
        """
        with self._timers.transferring():
            self._gather.finish()

    def launched(self, instruction: int) -> None:
        """Start the buckets that may start once an instruction of `run_pipeline` is launched.

        Args:
            instruction: Index in the rank's instruction list.
        """
        if (points := self._launch_points) is None:
            return
        with self._reducing():
            self._reduction.start_from(points.startable_from[instruction])
            if instruction == points.last_backward:
                self._reduction.end_accumulation()

    def finish_gradient_reduction(self) -> None:
        """Launch the buckets that are left, and wait until every gradient is at its owner. Collective."""
        with self._timers.transferring():
            self._reduction.finish()

    def forget_frozen(self) -> None:
        """Gather frozen parameters again at the next step: the local shard was overwritten. Collective."""
        self._frozen_placement = None

    def _trained_parameters(self, stage: Stage) -> Iterator[tuple[int, nn.Parameter]]:
        """Yield each trained parameter of a stage with the number of its bucket, which is a layer group."""
        table = self._parameters.table.parameters
        for index, parameter in stage.trained.items():
            yield table[index].layer_groups[0], parameter

    def _before_forward(self, layer_group: int, _module: nn.Module, _args: object) -> None:
        if self._gather.is_awaited(layer_group):
            with self._timers.transferring():
                self._gather.wait_for(layer_group)

    def _after_accumulation(self, layer_group: int, _parameter: object) -> None:
        with self._reducing():
            self._reduction.accumulated(layer_group)

    def _reducing(self) -> AbstractContextManager[None]:
        """Time the reductions that hold up this thread; on a side stream none does."""
        return nullcontext() if self._has_side_stream else self._timers.transferring()
