"""The loss on sequences that are not trained on."""

import numpy as np

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.epoch_order import SequenceIndices
from hydraulis.data.sampling.run_sampler import batch_budget
from hydraulis.data.sampling.sampler import batches_in_order
from hydraulis.planner.batch_planner import BatchPlanner
from hydraulis.runtime.loop import PlanRequest, TokenReader
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.worker import Worker


class Evaluator:
    """Goes through all held-out sequences once, in batches as large as those of training, planned like them.

    The batches are always the same, so the plans of the first evaluation serve the later ones.

    Args:
        config: of the run; says when to evaluate, and how large a batch is.
        data: the sequences that are held out, the same on every rank; None if none are.
        worker: of this rank.
        planner: asked on rank 0 alone.
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
        """Evaluate if it is due after so many completed iterations. Collective.

        It is due after the last one too, so that the model that a run ends with has been evaluated.

        Raises:
            HydraulisError: as in training (see `iterations`).
        """
        every = self._train.evaluate_every
        if self._data is None or every is None or (step % every and step != self._train.num_steps):
            return None
        return Evaluation(step, self._loss(self._data))

    def _loss(self, data: SequenceSource) -> float:
        """Give the mean over all target tokens, in nats."""
        total = targets = 0.0
        for index, documents in enumerate(batches_in_order(*batch_budget(self._config, data.lengths))):
            if index == len(self._plans):
                self._plans.append(self._planned(data, documents))
            plan = self._plans[index]
            num_targets = float(np.sum(plan.targets))
            total += num_targets * self._worker.evaluate(plan, TokenReader(data, documents))
            targets += num_targets
        return total / targets

    def _planned(self, data: SequenceSource, documents: SequenceIndices) -> Plan:
        request = PlanRequest(self._planner, data.lengths[documents], data.target_counts[documents])
        return Plan.from_json(from_rank_zero(request.text))
