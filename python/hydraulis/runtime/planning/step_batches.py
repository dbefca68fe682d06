"""The batches of a run's steps, with a lookahead those of its groups.

The batches of `planner.lookahead` consecutive steps form a group. Rank 0 plans a group before its first step,
and moves sequences between its steps where that makes their sum shorter; it then plans each step's batch as
any other. All ranks take the group from rank 0 in its first step. A checkpoint within a group has its moves,
so a resumed run trains each sequence once, on any number of ranks.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from hydraulis.config.planner import PlannerConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.data.sampling.epoch_order import SequenceIndices
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.runtime.batch import Batch
from hydraulis.runtime.planning.plans_ahead import PlannedStep
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks.rank_zero import from_rank_zero


class StepPosition(NamedTuple):
    """The position of a run in its steps.

    Attributes:
        completed: Number of completed steps.
        group: Group of which some steps are completed and others are left; None between two groups.
    """

    completed: int = 0
    group: BatchGroup | None = None


FIRST_STEP = StepPosition()


class StepBatch(NamedTuple):
    """The batch that a step trains.

    Attributes:
        step: Number of the step, counted from 1.
        batch: The batch.
        group: Group of the step.
    """

    step: int
    batch: Batch
    group: BatchGroup


class StepBatches:
    """The batches of a run's steps.

    Args:
        data: Training data.
        sampler: Sampler of the batches as they come.
        steps: Steps of the run.
        config: Section `planner`, with the number of steps planned together.
        group: Group of the checkpoint that the run continues from; None if it is between two groups.

    Attributes:
        group: Group of the current step, the same on all ranks.
    """

    def __init__(
        self,
        data: SequenceSource,
        sampler: BatchSampler,
        steps: range,
        config: PlannerConfig,
        group: BatchGroup | None = None,
    ) -> None:
        self._data, self._sampler = data, sampler
        self._end = steps.stop
        self._config = config
        self.group = group or BatchGroup(first_step=0, last_step=0)
        # Groups planned on rank 0 and not yet taken by the ranks.
        self._planned: list[BatchGroup] = []

    def request(self, step: int, planner: RunPlanner) -> Callable[[], PlannedStep]:
        """Prepare the plan of a step on rank 0, and return the function that makes it on another thread."""
        group = next((one for one in (self.group, *self._planned) if step in one), None)
        if group is not None:
            return partial(self._batch(group, step).plan, planner)
        steps = range(step, min(step + self._config.lookahead, self._end))
        batches = [Batch(self._data, self._own(one)) for one in steps]
        if self._config.lookahead == 1:
            return partial(batches[0].plan, planner)
        return partial(self._plan_group, step, batches, planner)

    def take(self, step: int) -> StepBatch:
        """Return the batch of a step that rank 0 has planned. Collective in the first step of a group."""
        if step not in self.group:
            if self._config.lookahead == 1:
                self.group = BatchGroup(first_step=step, last_step=step)
            else:
                self.group = BatchGroup.from_json(from_rank_zero(lambda: self._planned.pop(0).to_json()))
        return StepBatch(step, self._batch(self.group, step), self.group)

    def _plan_group(self, step: int, batches: Sequence[Batch], planner: RunPlanner) -> PlannedStep:
        """Move sequences between the batches of a group, and plan its first step."""
        start = time.perf_counter()
        lengths, targets = [one.lengths for one in batches], [one.targets for one in batches]
        # The last group of a run may have a single step.
        delay = min(self._config.max_delay, len(batches) - 1)
        together = planner.plan_lookahead(lengths, targets, max_delay=delay)
        planner.check_lookahead(together, lengths, targets, max_delay=delay)
        group = BatchGroup.of_members(step, together.members)
        own = {step + index: batch.indices for index, batch in enumerate(batches)}
        grouped_ms = 1e3 * (time.perf_counter() - start)
        plan, plan_ms = Batch(self._data, group.sequences(step, own.__getitem__)).plan(planner)
        self._planned.append(group)
        return PlannedStep(plan, grouped_ms + plan_ms)

    def _batch(self, group: BatchGroup, step: int) -> Batch:
        return Batch(self._data, group.sequences(step, self._own))

    def _own(self, step: int) -> SequenceIndices:
        return self._sampler.batch(step - 1).sequences
