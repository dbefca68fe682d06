"""A global batch: its sequences, and its plan, which rank 0 makes for all ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from hydraulis._core import Plan
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.tokens import SequenceTokens
from hydraulis.runtime.planning.plans_ahead import PlannedStep
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks.rank_zero import from_living_rank_zero


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences of a data set; their ids in the batch are 0, 1, 2 and so on.

    Attributes:
        data: The data set.
        indices: Index of each sequence in the data set, int64 [n].
    """

    data: SequenceSource
    indices: npt.NDArray[np.int64]

    def read(self, sequence: int) -> SequenceTokens:
        """Return the tokens of a sequence, by its id in the batch."""
        return self.data.read(int(self.indices[sequence]))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sequence, int64 [n]."""
        return self.data.lengths[self.indices]

    @property
    def targets(self) -> npt.NDArray[np.int64]:
        """Number of targets of each sequence, int64 [n]."""
        return self.data.target_counts[self.indices]

    def plan(self, planner: RunPlanner) -> PlannedStep:
        """Plan the batch, time that, and check the plan.

        Raises:
            HydraulisError: The planner refuses the batch, or the plan breaks a promise (code `plan_broken`).
        """
        lengths, targets = self.lengths, self.targets
        start = time.perf_counter()
        plan = planner.plan(lengths, targets)
        plan_ms = 1e3 * (time.perf_counter() - start)
        planner.check(plan, lengths, targets)
        return PlannedStep(plan, plan_ms)


def plan_on_rank_zero(make: Callable[[], Plan]) -> Plan:
    """Make a plan on rank 0, and return it on every rank; see `plan_unless_stopped`. Collective."""
    plan = plan_unless_stopped(lambda _alive: make(), lambda: False)
    assert plan is not None
    return plan


def plan_unless_stopped(make: Callable[[Callable[[], None]], Plan], stops: Callable[[], bool]) -> Plan | None:
    """Make a plan on rank 0, and return it on every rank. Collective.

    Rank 0 keeps its plan; the other ranks parse the bytes that they receive.

    Args:
        make: Makes the plan; called on rank 0 only, with a heartbeat function to call while it takes long.
        stops: Function that returns whether the run must stop; its answer on rank 0, once the plan is made,
            is every rank's.

    Returns:
        The plan; None if the run must stop.

    Raises:
        HydraulisError: Making the plan failed; on every rank.
    """
    made: list[Plan | None] = []

    def serialize(alive: Callable[[], None]) -> str:
        plan = make(alive)
        made.append(None if stops() else plan)
        return plan.to_json() if made[0] is not None and dist.get_world_size() > 1 else ""

    received = from_living_rank_zero(serialize)
    if made:
        return made[0]
    return Plan.from_json(received) if received else None
