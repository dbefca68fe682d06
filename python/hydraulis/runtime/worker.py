"""One rank of a training run: what it holds, and one iteration of what it does."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Cluster, Plan, Position, Replica, Scheme
from hydraulis.config.kinds import ContextKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.train import TrainConfig
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.data.tokens import SequenceTokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.model.tensors import wide_dtype
from hydraulis.parallel.context.context_parallel import check_context_degree
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.tensor import check_tensor_degree
from hydraulis.runtime.memory.iteration_memory import IterationMemory, tokens_at_once
from hydraulis.runtime.pipeline.executor import Execution, Gauges, execute
from hydraulis.runtime.pipeline.forward_only import execute_forward
from hydraulis.runtime.pipeline.planned_sequences import PlannedSequences
from hydraulis.runtime.pipeline.stage import Stage, StageKinds
from hydraulis.runtime.pipeline.timers import iteration_clock
from hydraulis.runtime.ranks.device import choose_device, tensor_backend_of
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.redistribute.bucket_exchange import BucketExchange
from hydraulis.runtime.redistribute.redistribution import Transfers
from hydraulis.runtime.redistribute.staging_sizes import StagingSizes
from hydraulis.runtime.state.buffers import StrategyBuffers
from hydraulis.runtime.state.frozen import FrozenParameters
from hydraulis.runtime.state.initial_values import InitialValues, ParameterValues
from hydraulis.runtime.state.optimizer_shard import HomePlace, HomeShare, HomeState
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.step_result import Outcome, RankReport, gathered, measured_timelines


class Worker:
    """The state of one rank. Collective to make.

    Attributes:
        device: of this rank.
        cluster: all ranks, in their nodes.
        kernel: that computes attention.
        parameters: those that are trained.
        home: this rank's share of them.
        frozen: those that are not; None if all are trained.
        buffers: this rank's in the current strategy.
        groups: of the ranks of stages.

    Args:
        model: the model's shape.
        optimizer: AdamW's settings.
        train: gives the number of steps, the type of parameters and activations, the seed of the initial
            parameters, the device, the timeout of every process group, the kind of attention of every stage,
            the layers of stages, and which parameters are frozen.
        schemes: every scheme that a plan of the run may use.
        values: of the parameters at the start; None draws them by the seed.

    Raises:
        InvalidInputError: A scheme or the layers of its stages do not divide the model (code
            `scheme_model_mismatch`), a frozen pattern names no parameter (`config_value`), the device is
            missing (see `choose_device`), or it has no attention kernel for these heads
            (`attention_unsupported`).
        HydraulisError: what reading the values raised; on every rank.
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: OptimizerConfig,
        train: TrainConfig,
        *,
        schemes: Sequence[Scheme],
        values: ParameterValues | None = None,
    ) -> None:
        for scheme in schemes:
            check_tensor_degree(model, scheme.tp)
        self._schemes = frozenset(schemes)
        dtype: torch.dtype = getattr(torch, train.dtype)
        wide = wide_dtype(dtype)
        self.device = choose_device(train.device)
        self.cluster = Cluster(gpus=dist.get_world_size(), gpus_per_node=ranks_per_node())
        self._attention = train.attention
        heads = torch.empty(0, 1, model.head_dim, dtype=dtype, device=self.device)
        # Nodes may differ in what is installed.
        self.kernel = on_every_rank(lambda: choose_kernel(heads, train.attention))
        self.parameters, frozen = ModelParameters.parted(model, train.frozen, train.stage_layers)
        timeout = timedelta(seconds=train.timeout_s)
        self.groups = ProcessGroups(timeout, tensor_backend_of(self.device))
        self.buffers = StrategyBuffers.for_schemes(self.parameters, schemes, dtype, self.device)
        source = values or InitialValues(ModelParameters.of(model), train.seed, wide)
        # Reading may fail on a single rank.
        place = HomePlace(self.device, self.cluster, schemes)
        self.home = on_every_rank(
            lambda: HomeState(self.parameters, optimizer, dtype, source, train.num_steps, place)
        )
        self.frozen = None
        if frozen is not None:
            share = on_every_rank(lambda: HomeShare(frozen, dtype, source, place))
            self.frozen = FrozenParameters(
                share, schemes, dtype, BucketExchange(share.layout, timeout, self.device)
            )
        self._clock, self._memory = (
            iteration_clock(self.device),
            IterationMemory(self.device),
        )
        exchange = BucketExchange(self.home.layout, timeout, self.device)
        self._transfers = Transfers(self.parameters, self.home, self.buffers, exchange, self._clock)
        self._transfers.reserve(self._staged(self.home))
        if self.frozen:
            self.frozen.reserve(self._staged(self.frozen.share))
        self._stages: dict[tuple[Position, ContextKind | None], Stage] = {}

    @property
    def schemes(self) -> Sequence[Scheme]:
        """Every scheme that a plan may use."""
        return sorted(self._schemes)

    @property
    def shares(self) -> Sequence[HomeShare]:
        """What this rank keeps of the model's state."""
        return (self.home, self.frozen.share) if self.frozen else (self.home,)

    @property
    def all_buffers(self) -> Sequence[StrategyBuffers]:
        """What this rank holds of the model in a strategy."""
        return (self.buffers, self.frozen.buffers) if self.frozen else (self.buffers,)

    def stage(self, position: Position, context: ContextKind | None) -> Stage:
        """Return what this rank computes at a position; built on first use, then kept.

        Args:
            position: of this rank, its groups ensured.
            context: the kind of the replica's context parallelism; None if it has none.
        """
        key = (position, context)
        if key not in self._stages:
            kinds = StageKinds(context, self._attention)
            self._stages[key] = Stage(
                self.parameters, position, kinds, dist.get_rank(), self.groups, *self.all_buffers
            )
            self._transfers.attach(self._stages[key])
        return self._stages[key]

    def ensure_groups(self, positions: Sequence[Position | None]) -> None:
        """Make the process groups of ranks that stand there, by rank. Collective."""
        placed = [(position, rank) for rank, position in enumerate(positions) if position is not None]
        self.groups.ensure(position.tensor_group(rank) for position, rank in placed)
        self.groups.ensure(position.context_group(rank) for position, rank in placed)

    def accumulate(self, plan: Plan, tokens: Callable[[int], SequenceTokens]) -> Outcome:
        """Carry a plan out, all but the step: the batch's gradients end at home. Collective.

        Args:
            plan: the same on every rank.
            tokens: gives the tokens of a sequence of the batch, by its id; asked for this rank's alone.

        Raises:
            InvalidInputError: The plan is for another number of ranks or uses another scheme than the
                worker's (code `plan_mismatch`), has a context degree that the model does not admit
                (`scheme_model_mismatch`), or does not match the sequences (see `PlannedSequences.check`); on
                every rank.
        """
        _check_plan(plan, self.parameters.config, self._schemes)
        # What measurements and evaluations took is not this iteration's.
        self._clock.read()
        rank = dist.get_rank()
        self._memory.begin(self._lasting(), plan.position(rank), tokens_at_once(plan, rank))
        made_ms = self.groups.made_ms
        self.ensure_groups([plan.position(rank) for rank in range(dist.get_world_size())])
        if self.frozen:
            # No plan counts it, since none knows the positions before it: it is measured.
            with self._clock.transferring():
                self.frozen.send(plan)
        sequences = PlannedSequences(plan, tokens, self.parameters.config.vocab_size)
        execution = self._execute(plan, sequences)
        self._transfers.finish_gradients()
        sequences.check()
        loss = _whole_loss(plan, execution.loss())
        times = self._clock.read()
        lasting = self._lasting()
        memory = self._memory.most_bytes(lasting), self._memory.peak_bytes(lasting)
        by_rank = gathered(RankReport(times.computed_ms, *memory, self._memory.kept is not None))
        return Outcome(
            loss=loss,
            timelines=measured_timelines(plan, by_rank),
            memory_bytes=max((report.memory_bytes for report in by_rank), default=0),
            peak_bytes=tuple(report.peak_bytes for report in by_rank),
            is_counted=any(report.is_counted for report in by_rank),
            transfer_ms=times.transferred_ms,
            groups_ms=self.groups.made_ms - made_ms,
        )

    def evaluate(self, plan: Plan, tokens: Callable[[int], SequenceTokens]) -> float:
        """Give the batch's mean loss over its target tokens, and learn nothing from it. Collective.

        Args:
            plan: the same on every rank; its backward passes are left out.
            tokens: as for `accumulate`, which raises the same.
        """
        _check_plan(plan, self.parameters.config, self._schemes)
        self.ensure_groups([plan.position(rank) for rank in range(dist.get_world_size())])
        self._transfers.fill(self._transfers.prepare(plan))
        if self.frozen:
            self.frozen.send(plan)
        sequences = PlannedSequences(plan, tokens, self.parameters.config.vocab_size)
        loss = 0.0
        work = self._work(plan)
        if work is not None:
            stage, replica = work
            micro_batches = _collated(stage, replica, sequences)
            instructions = plan.instructions(dist.get_rank())
            loss = execute_forward(instructions, stage, micro_batches, int(plan.targets.sum()))
        sequences.check()
        return _whole_loss(plan, loss)

    def _execute(self, plan: Plan, tokens: Callable[[int], SequenceTokens]) -> Execution:
        buckets = self._transfers.prepare(plan)
        work = self._work(plan)
        if work is None:
            self._transfers.begin(buckets)
            self._transfers.finish_parameters()
            return Execution()
        stage, replica = work
        self._transfers.begin(buckets, stage, sum(map(bool, replica.micro_batches)))
        return execute(
            plan.instructions(dist.get_rank()),
            stage,
            _collated(stage, replica, tokens),
            int(plan.targets.sum()),
            self._transfers.finish_parameters,
            Gauges(self._clock, self._memory.kept),
        )

    @property
    def staging(self) -> list[Tensor]:
        """What transfers take beside the buffers."""
        return [*self._transfers.staging, *(self.frozen.staging if self.frozen else [])]

    def _staged(self, share: HomeShare) -> StagingSizes:
        return StagingSizes.of(share.parameters, share.layout, self.cluster, self.schemes)

    def _lasting(self) -> list[Tensor]:
        """List what this rank always holds."""
        held = [flat for part in self.all_buffers for flat in (part.parameter, part.gradient)]
        home = [flat for share in self.shares for flat in (*share.buffers().values(), share.gradient)]
        return [*held, *home, *self.staging]

    def _work(self, plan: Plan) -> tuple[Stage, Replica] | None:
        """Give this rank's stage and its replica; None if it has neither."""
        rank = dist.get_rank()
        position = plan.position(rank)
        if position is None:
            return None
        replica = next(replica for replica in plan.replicas if rank in replica.ranks)
        return self.stage(position, replica.context), replica


def _collated(
    stage: Stage, replica: Replica, tokens: Callable[[int], SequenceTokens]
) -> list[PackedMicroBatch | None]:
    """Collate a replica's micro-batches; None in place of those that only keep others apart in memory."""
    return [
        stage.collate([tokens(sequence) for sequence in sequences]) if sequences else None
        for sequences in replica.micro_batches
    ]


def _check_plan(plan: Plan, config: ModelConfig, schemes: frozenset[Scheme]) -> None:
    if plan.cluster.gpus != dist.get_world_size():
        message = (
            f"the plan is for {plan.cluster.gpus} GPUs, {dist.get_world_size()} ranks run; "
            "plan for a cluster of as many GPUs as there are ranks"
        )
        raise InvalidInputError(message, code="plan_mismatch")
    for replica in plan.replicas:
        check_context_degree(config, replica.scheme, replica.context)
        if replica.scheme not in schemes:
            # Its stages may be larger than the buffers, and cut what the model does not admit.
            known = ", ".join(map(str, sorted(schemes)))
            message = (
                f"the plan uses scheme {replica.scheme}, and the ranks hold memory for {known}; plan with "
                "the schemes of the run alone"
            )
            raise InvalidInputError(message, code="plan_mismatch")


def _whole_loss(plan: Plan, share: float) -> float:
    """Add the shares of all ranks up. Collective."""
    position = plan.position(dist.get_rank())
    # The tensor ranks of a last stage all know the loss of its tokens: one of them speaks for it.
    speaks = position is not None and position.tensor_rank == 0
    loss = torch.tensor(share if speaks else 0.0, dtype=torch.float64)
    dist.all_reduce(loss)
    return loss.item()
