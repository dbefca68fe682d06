"""One rank of a run: its state, and the stages that it builds over it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Plan, Position, Scheme
from hydraulis.config.kinds import ContextKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.train import TrainConfig
from hydraulis.data.tokens import SequenceTokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.kernel import AttentionKernel
from hydraulis.model.attention.kernel_check import check_kernel
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.model.float8 import require_float8
from hydraulis.model.leaves import require_triton
from hydraulis.model.tensors import wide_dtype
from hydraulis.parallel.checkpointing import check_layer_plan
from hydraulis.parallel.communicators import (
    Channels,
    check_kernels_in_flight,
    communicator_bytes,
    nccl_options,
)
from hydraulis.parallel.context.context_parallel import check_context_degree
from hydraulis.parallel.groups import ProcessGroups, aligned_groups, connect_world
from hydraulis.parallel.offload import HostCopies
from hydraulis.parallel.symmetric_memory import require_symmetric_memory
from hydraulis.parallel.tensor import check_tensor_degree
from hydraulis.runtime.agreement.step_digest import digest_step, weighted_digest
from hydraulis.runtime.agreement.step_sum import StepSum, StepTerms, Votes, sum_step
from hydraulis.runtime.jumps import JumpDetector
from hydraulis.runtime.memory.device_memory import outside_bytes
from hydraulis.runtime.memory.iteration_memory import IterationMemory, tokens_in_flight
from hydraulis.runtime.pipeline.planned_sequences import PlannedSequences
from hydraulis.runtime.pipeline.rank_work import RankWork, neighbours, own_replica
from hydraulis.runtime.pipeline.stage import Stage, StageKinds
from hydraulis.runtime.pipeline.timers import step_timers
from hydraulis.runtime.pipeline.warm_up import warm_up
from hydraulis.runtime.placement import ByPlacement, Placement, placement_of
from hydraulis.runtime.ranks.device import choose_device, tensor_backend_of
from hydraulis.runtime.ranks.distributed import run_cluster
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroups
from hydraulis.runtime.redistribute.sharded_redistribution import make_redistribution
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.optimizer_shard import OptimizerShard, ShardPlacement
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters, ParameterValues
from hydraulis.runtime.state.places import check_stages
from hydraulis.runtime.step_result import (
    RankReport,
    StepMeasurement,
    TimedCrossing,
    combine_reports,
    gather_reports,
)


class Worker:
    """The state of one rank. Collective to create; `train_step` runs an iteration on it.

    Attributes:
        device: Device of this rank.
        train: Settings of training.
        cluster: All ranks in their nodes.
        schemes: Every scheme that a plan may use, in order.
        kernel: Attention kernel.
        parameters: The model's parameters.
        optimizer_shard: This rank's optimizer shard.
        local_shard: This rank's local shard in the current strategy.
        redistribution: Parameter gathers and gradient reductions between the two shards.
        channels: Channels of the NCCL communicators.
        groups: Process groups of the stages.
        copies: Activations of this rank in host memory; None if no scheme offloads.
        timers: Timers of the current step.
        memory: Memory measurement of the current step.
        jumps: Detector of jumps of the loss and of the gradient norm.
        votes: Questions that every rank answers in each step.

    Args:
        model: The model's shape.
        optimizer: The optimizer and its settings.
        train: Settings of training: number of steps, dtype, seed, device, timeout of the process groups,
            attention kernel, layers of stages, and frozen parameters.
        schemes: Every scheme that a plan of the run may use.
        values: Initial values of the parameters; None draws them by the seed.

    Raises:
        InvalidInputError: A scheme or the layers of its stages do not divide the model (code
            `scheme_model_mismatch`), a frozen pattern names no parameter (`config_value`), the device is
            missing, lacks float8 or does not reach its node's devices (see `choose_device`, `require_float8`
            and `require_symmetric_memory`), or it has no attention kernel for these heads
            (`attention_unsupported`).
        HydraulisError: Reading the initial values failed, Triton is missing (see `require_triton`), or the
            attention kernel is wrong (see `check_kernel`); on every rank.
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
        self.schemes = sorted(set(schemes))
        dtype: torch.dtype = getattr(torch, train.dtype)
        timeout = timedelta(seconds=train.timeout_s)
        self.device = choose_device(train.device)
        self.cluster = run_cluster()
        self.train = train
        # Installed kernels may differ between nodes.
        self.kernel = on_every_rank(lambda: self._choose_kernel(model, dtype))
        on_every_rank(self._require_kernels)
        self.parameters = ModelParameters.from_config(model, train.frozen, train.stage_layers)
        self.channels = Channels.of_run(train)
        self.groups = self._make_groups(timeout)
        if train.symmetric_memory:
            self.groups.share_memory((scheme.tp for scheme in schemes), self.cluster)
        check_stages(train.sharding, self.schemes)
        self.local_shard = LocalShard(self.parameters, self.schemes, dtype, self.device, train.sharding)
        source = values or InitialValues(self.parameters, train.seed, wide_dtype(dtype))
        placement = ShardPlacement(self.device, self.cluster, schemes)
        # Reading may fail on a single rank.
        self.optimizer_shard = on_every_rank(
            lambda: OptimizerShard(self.parameters, optimizer, dtype, source, train.num_steps, placement)
        )
        self.copies = _host_copies(self.schemes, self.device)
        self.timers = step_timers(self.device)
        self.memory = IterationMemory(self.device)
        self.jumps = JumpDetector(train)
        self.votes = Votes()
        exchange_groups = ExchangeGroups(
            self.optimizer_shard.layout, timeout, self.device, self.channels.exchange
        )
        self.redistribution = make_redistribution(
            exchange_groups, self.optimizer_shard, self.local_shard, self.timers
        )
        self.redistribution.reserve(self.cluster, self.schemes)
        if self.device.type == "cuda" and self.cluster.gpus > 1:
            # The step's sums are reduced over all ranks.
            connect_world(self.device)
        self._stages: dict[tuple[Position, ContextKind | None], Stage] = {}
        self._groups_ms = 0.0
        self._connected = ByPlacement[None]()
        # Placement that the local shard has the size for; None outside any plan.
        self._fitted: Placement | None = None

    @property
    def completed(self) -> int:
        """Number of steps so far, those before a resumed checkpoint and skipped updates included."""
        return self.optimizer_shard.optimizer.num_steps

    @property
    def communicator_bytes(self) -> int:
        """The most device memory of this rank's NCCL connections and symmetric buffers; 0 on the CPU."""
        if self.device.type != "cuda":
            return 0
        return communicator_bytes(self.schemes, self.cluster, self.channels)

    @property
    def later_communicator_bytes(self) -> int:
        """The part of them that is connected after a measurement of all schemes."""
        if self.device.type != "cuda":
            return 0
        return communicator_bytes(self.schemes, self.cluster, self.channels, later=True)

    @property
    def persistent(self) -> list[Tensor]:
        """The persistent tensors of this rank: local shard, optimizer shard and staging."""
        local = [self.local_shard.parameter, self.local_shard.gradient]
        buffers = [buffer.flat for buffer in self.optimizer_shard.buffers().values()]
        return [*local, *buffers, self.optimizer_shard.gradient, *self.redistribution.staging]

    def prepare(self, plan: Plan, read: Callable[[int], SequenceTokens]) -> RankWork:
        """Check a plan, create its missing process groups, and return this rank's part of it. Collective.

        Args:
            plan: Plan of the batch, the same on every rank.
            read: Reader of a sequence's tokens, by its id in the batch.

        Raises:
            InvalidInputError: The plan is for another number of ranks, or uses a scheme outside `schemes`
                (code `plan_mismatch`), or has a context degree that the model does not admit
                (`scheme_model_mismatch`); on every rank.
        """
        self._check_plan(plan)
        groups_ms = self.groups.made_ms
        placement = placement_of(plan)
        self._connected.get(placement, partial(self._connect, plan))
        self._groups_ms = self.groups.made_ms - groups_ms
        rank, replica = dist.get_rank(), own_replica(plan)
        position = plan.position(rank)
        self._fit_local_shard(placement, position)
        stage = None if position is None or replica is None else self.stage(position, replica.context)
        return RankWork(
            position=position,
            replica=replica,
            stage=stage,
            instructions=plan.instructions(rank) if stage else [],
            micro_batches=replica.micro_batches if replica else [],
            denominator=int(plan.targets.sum()),
            sequences=PlannedSequences(plan, read, self.parameters.config.vocab_size),
        )

    def _fit_local_shard(self, placement: Placement, position: Position | None) -> None:
        """Resize the local shard for a placement; frozen parameters are then gathered again."""
        if placement != self._fitted:
            schemes = {
                scheme
                for scheme, is_used in zip(placement.schemes, placement.is_used, strict=True)
                if is_used
            }
            self._fitted = None
            self.local_shard.fit(None if position is None else position.scheme, schemes)
            self.redistribution.forget_frozen()
            self._fitted = placement

    def fit_local_shard_alone(self, scheme: Scheme) -> None:
        """Resize the local shard for replicas of one scheme, outside any plan. Collective."""
        self.local_shard.fit(scheme, [scheme])
        self.redistribution.forget_frozen()
        self._fitted = None

    def _connect(self, plan: Plan) -> None:
        """Create the missing groups of a plan's places, and connect neighbouring stages. Collective."""
        self.ensure_groups([plan.position(rank) for rank in range(dist.get_world_size())])
        self.groups.connect(neighbours(plan))

    def ensure_groups(self, positions: Sequence[Position | None]) -> None:
        """Create the missing process groups of ranks at these positions, by rank. Collective."""
        placed = [(position, rank) for rank, position in enumerate(positions) if position is not None]
        if self.groups.can_split:
            # A later strategy of the same degrees then needs no more groups.
            degrees = ((position.scheme.tp, position.scheme.cp) for position, _ in placed)
            for rank_sets in aligned_groups(degrees, self.cluster):
                self.groups.ensure(rank_sets)
        self.groups.ensure(position.tensor_group(rank) for position, rank in placed)
        self.groups.ensure(position.context_group(rank) for position, rank in placed)

    def stage(self, position: Position, context: ContextKind | None) -> Stage:
        """Return this rank's stage at a position, built and warmed up on first use.

        The first use is collective over the stage's groups, with nothing in flight.

        Args:
            position: Position of this rank, whose groups were ensured.
            context: Kind of the replica's context parallelism; None without context parallelism.
        """
        key = (position, context)
        if key not in self._stages:
            self.copies = self.copies or _host_copies([position.scheme], self.device)
            train = self.train
            kinds = StageKinds(
                context=context,
                attention=train.attention,
                compiles=bool(train.compile),
                float8=train.float8,
                float8_messages=train.float8_messages,
            )
            stage = Stage(position, kinds, dist.get_rank(), self.groups, self.local_shard, self.copies)
            warm_up(stage)
            self.redistribution.register_hooks(stage)
            self._stages[key] = stage
        return self._stages[key]

    def start_measuring(self, plan: Plan) -> None:
        """Reset the timers, which evaluations used too, and start measuring memory."""
        self.timers.read()
        rank = dist.get_rank()
        self.memory.start(self.persistent, plan.position(rank), tokens_in_flight(plan, rank), self.copies)

    def sum_step(self, plan: Plan, work: RankWork, loss: Tensor) -> StepSum:
        """Add up the step's numbers over all ranks, and count the votes. Collective.

        Args:
            plan: Plan of the batch.
            work: This rank's part of the plan, carried out, with the gradients' sums at their owners.
            loss: Sum of the rank's terms of the mean loss.
        """
        digest = digest_step(plan, work.sequences.digests)
        total = sum_step(
            StepTerms(
                loss=loss,
                square=self.optimizer_shard.optimizer.gradient_square(),
                has_failed=work.sequences.error is not None,
                digest=weighted_digest(digest, dist.get_rank(), dist.get_world_size(), work.replica),
                votes=self.votes.cast(),
            )
        )
        self.votes.take(total.votes)
        return total

    def measure(self, plan: Plan) -> StepMeasurement:
        """Return the times and the memory since `start_measuring`, of all ranks on rank 0. Collective."""
        times, persistent = self.timers.read(), self.persistent
        peak = self.memory.peak_bytes(persistent)
        report = RankReport(
            computed_ms=times.computed_ms,
            memory_bytes=self.memory.most_bytes(persistent),
            peak_bytes=None if peak is None else peak + outside_bytes(self.device, self.communicator_bytes),
            is_counted=self.memory.saved is not None,
            crossing=TimedCrossing(times.crossing_ms, *self.redistribution.crossing),
        )
        by_rank = gather_reports(plan, report)
        return combine_reports(plan, by_rank, transfer_ms=times.transferred_ms, groups_ms=self._groups_ms)

    def _make_groups(self, timeout: timedelta) -> ProcessGroups:
        """Create the empty set of the stages' groups; on CUDA their NCCL kernels must fit on the device."""
        backend = tensor_backend_of(self.device)
        if self.device.type != "cuda":
            return ProcessGroups(timeout, backend)
        on_every_rank(lambda: check_kernels_in_flight(self.schemes, self.cluster, self.channels, self.device))
        # NCCL connects ranks at their first message.
        return ProcessGroups(
            timeout, backend, self.device, partial(nccl_options, self.channels.stage, timeout)
        )

    def _choose_kernel(self, model: ModelConfig, dtype: torch.dtype) -> AttentionKernel:
        """Choose the attention kernel; on CUDA one that computes what plain attention does."""
        heads = torch.empty(0, 1, model.head_dim, dtype=dtype, device=self.device)
        kernel = choose_kernel(heads, self.train.attention)
        if self.device.type == "cuda" and kernel.kind != "plain":
            rings = any(scheme.cp > 1 for scheme in self.schemes)
            counts = (model.num_attention_heads, model.num_key_value_heads)
            check_kernel(kernel, *counts, heads, between_segments=rings)
        return kernel

    def _require_kernels(self) -> None:
        if self.train.compile:
            require_triton(self.device)
        if self.train.float8:
            require_float8(self.device)
        if self.train.symmetric_memory:
            require_symmetric_memory(self.device, self.cluster.gpus_per_node)

    def _check_plan(self, plan: Plan) -> None:
        if plan.cluster.gpus != dist.get_world_size():
            message = (
                f"the plan is for {plan.cluster.gpus} GPUs, {dist.get_world_size()} ranks run; "
                "plan for a cluster of as many GPUs as there are ranks"
            )
            raise InvalidInputError(message, code="plan_mismatch")
        # Process groups, staging and owners do not depend on checkpointing.
        known = {scheme.with_checkpointing("none") for scheme in self.schemes}
        for replica in plan.replicas:
            check_context_degree(self.parameters.config, replica.scheme, replica.context)
            check_layer_plan(self.parameters.config, replica.scheme)
            if replica.scheme.with_checkpointing("none") not in known:
                # Its transfers may be larger than the staging, or its stages may not divide the model.
                message = (
                    f"the plan uses scheme {replica.scheme}, and the run's schemes are "
                    f"{', '.join(map(str, self.schemes))}; plan with these only"
                )
                raise InvalidInputError(message, code="plan_mismatch")


def _host_copies(schemes: Sequence[Scheme], device: torch.device) -> HostCopies | None:
    """Create the rank's copies in host memory, with their streams, if a layer of any scheme offloads."""
    if not any("offload" in scheme.checkpointing for scheme in schemes):
        return None
    return HostCopies(device, SideStream(device), SideStream(device))
