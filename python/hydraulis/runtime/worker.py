"""One rank of a training run: what it holds, and one iteration of what it does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from hydraulis._core import Plan, Position, Scheme, Span
from hydraulis.config.model import ModelConfig
from hydraulis.config.run import OptimizerConfig
from hydraulis.data.collate import collate
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.tensor import check_tensor_degree
from hydraulis.runtime.buffers import StrategyBuffers
from hydraulis.runtime.executor import Execution, execute
from hydraulis.runtime.home import HomeState
from hydraulis.runtime.parameters import ModelParameters
from hydraulis.runtime.stage import Stage
from hydraulis.runtime.transfers import Transfers

Tokens = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one iteration came to.

    Attributes:
        loss: the mean over the target tokens of the global batch, the same on every rank.
        timelines: each replica's measured timeline, on rank 0; empty elsewhere.
    """

    loss: float
    timelines: Sequence[Sequence[Span]]

    @property
    def measured_ms(self) -> float:
        """When the last replica ended, in CPU time: its instruction list with the measured durations."""
        return max((span.end_ms for timeline in self.timelines for span in timeline), default=0.0)


class Worker:
    """The state of one rank.

    Args:
        model: the model's shape.
        optimizer: AdamW's settings.
        schemes: every scheme that a plan of the run may use.
        dtype: of parameters and activations.
        seed: of the initial parameters.
        timeout: of every process group.

    Raises:
        InvalidInputError: the model cannot be cut by one of the schemes (codes `tensor_degree`,
            `too_many_stages`).
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: OptimizerConfig,
        *,
        schemes: Sequence[Scheme],
        dtype: torch.dtype,
        seed: int,
        timeout: timedelta,
    ) -> None:
        for scheme in schemes:
            check_tensor_degree(model, scheme.tp)
        self.parameters = ModelParameters.of(model)
        self.groups = ProcessGroups(timeout)
        self.buffers = StrategyBuffers.for_schemes(self.parameters, schemes, dtype)
        self.home = HomeState(self.parameters, optimizer, dtype, seed)
        self._transfers = Transfers(self.parameters, self.home, self.buffers)
        self._stages: dict[Position, Stage] = {}

    def stage(self, position: Position) -> Stage:
        """Return what this rank computes at a position; built on first use, then kept."""
        if position not in self._stages:
            self._stages[position] = Stage(
                self.parameters, position, dist.get_rank(), self.groups, self.buffers
            )
        return self._stages[position]

    def iterate(self, plan: Plan, tokens: Callable[[int], Tokens]) -> Outcome:
        """Carry a plan out: parameters from home, forward and backward, gradients home, one step. Collective.

        Args:
            plan: the same on every rank.
            tokens: gives the tokens of a sequence of the batch, by its id; asked for this rank's alone.
        """
        outcome = self.accumulate(plan, tokens)
        self.home.step()
        return outcome

    def accumulate(self, plan: Plan, tokens: Callable[[int], Tokens]) -> Outcome:
        """Do all of an iteration but the step: the batch's gradients end at home. Collective."""
        self.groups.ensure(_tensor_groups(plan))
        buckets = self._transfers.prepare(plan)
        self.buffers.gradient.zero_()
        self._transfers.send_parameters(buckets)
        execution = self._execute(plan, tokens)
        self._transfers.collect_gradients(buckets)
        return _outcome(plan, execution)

    def _execute(self, plan: Plan, tokens: Callable[[int], Tokens]) -> Execution:
        rank = dist.get_rank()
        position = plan.position(rank)
        if position is None:
            return Execution()
        stage = self.stage(position)
        replica = next(replica for replica in plan.replicas if rank in replica.ranks)
        micro_batches = [
            collate([tokens(sequence) for sequence in sequences], multiple=stage.token_multiple)
            for sequences in replica.micro_batches
        ]
        return execute(plan.instructions(rank), stage, micro_batches, int(plan.targets.sum()))


def _tensor_groups(plan: Plan) -> list[Sequence[int]]:
    """List the ranks of every stage of the plan that has more than one."""
    groups = []
    for replica in plan.replicas:
        tp = replica.scheme.tp
        groups += [replica.ranks[start : start + tp] for start in range(0, len(replica.ranks), tp)]
    return [ranks for ranks in groups if len(ranks) > 1]


def _outcome(plan: Plan, execution: Execution) -> Outcome:
    """Bring losses and durations of all ranks together. Collective."""
    position = plan.position(dist.get_rank())
    # The tensor ranks of a last stage all know its loss: one of them speaks for it.
    speaks = position is not None and position.tensor_rank == 0
    loss = torch.tensor(execution.loss if speaks else 0.0, dtype=torch.float64)
    dist.all_reduce(loss)
    durations: list[list[float]] | None = None
    if dist.get_rank() == 0:
        durations = [[]] * dist.get_world_size()
    dist.gather_object(execution.durations_ms, durations)
    timelines = [] if durations is None else plan.measured_timeline(_by_stage(plan, durations))
    return Outcome(loss=loss.item(), timelines=timelines)


def _by_stage(plan: Plan, durations: list[list[float]]) -> list[list[list[float]]]:
    """Arrange each rank's durations by replica and stage; a stage is as slow as its slowest tensor rank."""
    by_stage = []
    for replica in plan.replicas:
        tp = replica.scheme.tp
        blocks = [replica.ranks[start : start + tp] for start in range(0, len(replica.ranks), tp)]
        by_stage.append(
            [
                [max(times) for times in zip(*(durations[rank] for rank in block), strict=True)]
                for block in blocks
            ]
        )
    return by_stage
