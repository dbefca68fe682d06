"""The exchanges of sharded gradients and parameters, and the choice between them and those of whole stages.

More hooks than those of `redistribution.py` start and await them:

- before a layer group's backward, sharded gradients wait until their buffer is free; after each backward they
  start to leave (`gradient_rounds.py`);
- before each forward and each backward, sharded parameters wait for their layer group, and the next one is
  gathered (`parameter_rounds.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from hydraulis._core import Plan
from hydraulis.runtime.pipeline.rank_work import RankWork
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import StepTimers
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroups
from hydraulis.runtime.redistribute.gradient_reduction import GradientReduction
from hydraulis.runtime.redistribute.gradient_rounds import GradientRounds, first_round
from hydraulis.runtime.redistribute.parameter_gather import ParameterGather
from hydraulis.runtime.redistribute.parameter_rounds import ParameterRounds
from hydraulis.runtime.redistribute.plan_transfers import PlanTransfers, Round
from hydraulis.runtime.redistribute.redistribution import Redistribution
from hydraulis.runtime.redistribute.staging import StagingSizes
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard


def make_redistribution(
    groups: ExchangeGroups, optimizer_shard: OptimizerShard, local_shard: LocalShard, timers: StepTimers
) -> Redistribution:
    """Make the exchanges of a rank, by the sharding of its local shard.

    Args:
        groups: Groups of the exchanges, used for nothing else.
        optimizer_shard: This rank's optimizer shard.
        local_shard: This rank's local shard.
        timers: Timers of the time that goes to communication alone.
    """
    transfers = PlanTransfers(optimizer_shard, local_shard)
    if local_shard.gradient_places.starts is None:
        reduction = GradientReduction(groups, optimizer_shard, local_shard)
        gather = ParameterGather(groups, optimizer_shard, local_shard, lambda: reduction.free_staging, timers)
        return Redistribution(groups, transfers, gather, reduction, timers)
    rounds = GradientRounds(groups, optimizer_shard, local_shard)
    if local_shard.parameter_places.starts is None:
        gather = ParameterGather(groups, optimizer_shard, local_shard, lambda: rounds.free_staging, timers)
        return ShardedGradients(groups, transfers, gather, rounds, timers)
    gather = ParameterGather(groups, optimizer_shard, local_shard, None, timers)
    return ShardedParameters(groups, transfers, gather, rounds, timers)


class ShardedGradients(Redistribution):
    """Exchanges of a rank that holds the gradients of two layer groups at a time.

    Args:
        groups: Groups of the exchanges, used for nothing else.
        transfers: Exchanges of this rank under each plan.
        gather: Gather of parameters.
        rounds: Reduction of each micro-batch's gradients.
        timers: Timers of the time that goes to communication alone.
    """

    def __init__(
        self,
        groups: ExchangeGroups,
        transfers: PlanTransfers,
        gather: ParameterGather,
        rounds: GradientRounds,
        timers: StepTimers,
    ) -> None:
        super().__init__(groups, transfers, gather, rounds, timers)
        self._rounds = rounds

    def register_hooks(self, stage: Stage) -> None:
        """Let a stage also free a layer group's buffer before the first of the group's gradients.

        Products and lookups may add to a weight's gradient directly, so a layer claims its buffer at the
        gradient of its output. The head's weight is used by the loss, and claims it at its own gradient.

        Args:
            stage: Stage of this rank, built once.
        """
        super().register_hooks(stage)
        claims = {number: partial(self._before_accumulation, number) for number, _ in stage.layer_groups()}
        for number, module in stage.layer_groups():
            if module is not stage.module.norm:
                module.register_forward_hook(partial(_at_gradient, claims[number]))
        for number, parameter in self._trained_parameters(stage):
            if number == self._parameters.num_layer_groups - 1:
                parameter.register_hook(claims[number])

    def _expect(self, plan: Plan, work: RankWork | None) -> None:
        self._expect_rounds(plan, work, is_paced=False)

    def _expect_rounds(self, plan: Plan, work: RankWork | None, *, is_paced: bool) -> tuple[list[Round], int]:
        """Expect the gradients of all rounds; return them, and the first to which the rank contributes."""
        rounds = self._transfers.of_rounds(plan)
        first = first_round(len(rounds), 0 if work is None else work.num_micro_batches)
        gradients = [one.gradients for one in rounds]
        self._rounds.expect_rounds(gradients, self._accumulations(work), first, is_paced=is_paced)
        return rounds, first

    def launched(self, instruction: int) -> None:
        """Start the buckets that may start once an instruction of `run_pipeline` is launched.

        Args:
            instruction: Index in the rank's instruction list.
        """
        if (points := self._launch_points) is None:
            return
        if instruction == 0:
            # The rounds before this rank's first one use the staging in which parameters are permuted.
            self.finish_parameter_gather()
        with self._reducing():
            self._rounds.start_from(points.startable_from[instruction])
            if instruction in points.backwards:
                self._rounds.end_round()

    def _before_accumulation(self, layer_group: int, _gradient: object) -> None:
        # Computation waits here on a side stream too. A backward outside of an iteration, such as one that a
        # profile times, waits for nothing, and nobody reads these timers after it.
        if self._rounds.is_unclaimed(layer_group):
            with self._timers.transferring():
                self._rounds.claim(layer_group)


class ShardedParameters(ShardedGradients):
    """Exchanges of a rank that holds the parameters and gradients of two layer groups at a time.

    Args:
        groups: Groups of the exchanges, used for nothing else.
        transfers: Exchanges of this rank under each plan.
        gather: Gather of single layer groups.
        rounds: Reduction of each micro-batch's gradients.
        timers: Timers of the time that goes to communication alone.
    """

    def __init__(
        self,
        groups: ExchangeGroups,
        transfers: PlanTransfers,
        gather: ParameterGather,
        rounds: GradientRounds,
        timers: StepTimers,
    ) -> None:
        super().__init__(groups, transfers, gather, rounds, timers)
        self._parameter_rounds = ParameterRounds(
            gather, rounds, self._parameters.num_layer_groups, self._parameters.first_trained_layer_group
        )

    def _reserve_gather(self, trained: StagingSizes, frozen: StagingSizes) -> None:
        self._gather.reserve_layer_group(trained, frozen)

    def _start_gather(self, plan: Plan) -> None:
        """Start nothing: parameters come with each forward and backward."""

    def _expect(self, plan: Plan, work: RankWork | None) -> None:
        rounds, first = self._expect_rounds(plan, work, is_paced=True)
        self._parameter_rounds.expect([one.parameters for one in rounds], first, has_backward=True)

    def gather_parameters(self, plan: Plan) -> None:
        """Gather nothing: parameters come with each forward."""

    @contextmanager
    def forwards(self, plan: Plan, num_micro_batches: int) -> Iterator[None]:
        """Let the forwards inside, which have no backward, gather parameters. Collective.

        Args:
            plan: The plan of the forwards.
            num_micro_batches: Number of this rank's micro-batches with sequences.
        """
        rounds = self._transfers.of_rounds(plan)
        first = first_round(len(rounds), num_micro_batches)
        self._parameter_rounds.expect([one.parameters for one in rounds], first, has_backward=False)
        yield
        self._parameter_rounds.finish()

    def finish_parameter_gather(self) -> None:
        """Wait for nothing: parameters come with each forward and backward."""

    def launched(self, instruction: int) -> None:
        """Launch the exchanges that a round has left once its backward is launched.

        Args:
            instruction: Index in the rank's instruction list.
        """
        if self._launch_points is not None and instruction in self._launch_points.backwards:
            with self._reducing():
                self._parameter_rounds.end_round()

    def finish_gradient_reduction(self) -> None:
        """Launch the rounds that are left, and wait until every gradient is at its owner. Collective."""
        with self._timers.transferring():
            self._parameter_rounds.finish()
        super().finish_gradient_reduction()

    def _before_forward(self, layer_group: int, _module: nn.Module, _args: object) -> None:
        if self._parameter_rounds.is_expecting:
            with self._timers.transferring():
                self._parameter_rounds.before_forward(layer_group)

    def _before_accumulation(self, layer_group: int, _gradient: object) -> None:
        if self._parameter_rounds.is_expecting:
            with self._timers.transferring():
                self._parameter_rounds.before_backward(layer_group)


def _at_gradient(
    call: Callable[[object], None], _module: nn.Module, _arguments: object, output: Tensor
) -> None:
    """Call a function before the backward of a module that has returned this output."""
    if output.requires_grad:
        output.register_hook(call)
