"""The loss on held-out sequences."""

from functools import partial

import numpy as np

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import batch_budget
from hydraulis.data.sampling.sampler import batches_in_order
from hydraulis.planner.batch_planner import BatchPlanner
from hydraulis.runtime.batch import Batch, plan_on_rank_zero
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.step import evaluate
from hydraulis.runtime.worker import Worker


class Evaluator:
    """Evaluates all held-out sequences once, in batches of training's size, planned as in training.

    The batches never change, so later evaluations use the plans of the first one.

    Args:
        config: Configuration of the run, with the interval of evaluations and the size of a batch.
        data: Held-out sequences, the same on every rank; None if there are none.
        worker: This rank's worker.
        planner: Planner of the batches; asked on rank 0 only.
    """

    def __init__(
        self, config: RunConfig, data: SequenceSource | None, worker: Worker, planner: BatchPlanner
    ) -> None:
        self._config = config.data
        self._train = config.train
        self._data = data
        self._worker = worker
        self._planner = planner
        self._plans: list[Plan] = []

    def after(self, step: int) -> Evaluation | None:
        """Evaluate if an evaluation is due after `step` completed steps. Collective.

        One is due after the last step too, so the final model is evaluated.

        Raises:
            HydraulisError: As in training (see `iterations`).
        """
        every = self._train.evaluate_every
        if self._data is None or every is None or (step % every and step != self._train.num_steps):
            return None
        return Evaluation(step, self._mean_loss(self._data))

    def _mean_loss(self, data: SequenceSource) -> float:
        """Return the mean loss over all target tokens, in nats."""
        total = targets = 0.0
        for number, indices in enumerate(batches_in_order(*batch_budget(self._config, data.lengths))):
            batch = Batch(data, indices)
            if number == len(self._plans):
                self._plans.append(plan_on_rank_zero(partial(self._plan, batch)))
            plan = self._plans[number]
            num_targets = float(np.sum(plan.targets))
            total += num_targets * evaluate(self._worker, plan, batch.read)
            targets += num_targets
        return total / targets

    def _plan(self, batch: Batch) -> Plan:
        return batch.plan(self._planner).plan
