"""The loss on sequences that are not trained on."""

import numpy as np

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.open import budget
from hydraulis.data.sampler import batches_in_order
from hydraulis.planner.batch_planner import BatchPlanner
from hydraulis.runtime.evaluation import Evaluation
from hydraulis.runtime.loop import PlanRequest, TokenReader
from hydraulis.runtime.rank_zero import from_rank_zero
from hydraulis.runtime.worker import Worker


class Evaluator:
    """Goes through all held-out sequences once, in batches as large as those of training, planned like them.

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

    def after(self, step: int) -> Evaluation | None:
        """Evaluate if it is due after so many completed iterations. Collective; raises what `loss` does.

        It is due after the last one too, so that the model that a run ends with has been evaluated.
        """
        every = self._train.evaluate_every
        if self._data is None or every is None or (step % every and step != self._train.num_steps):
            return None
        return Evaluation(step, self.loss(self._data))

    def loss(self, data: SequenceSource) -> float:
        """Give the mean over all target tokens, in nats. Collective.

        Raises:
            HydraulisError: as in training (see `iterations`).
        """
        total = targets = 0.0
        for documents in batches_in_order(*budget(self._config, data.lengths)):
            counts = data.target_counts[documents]
            request = PlanRequest(self._planner, data.lengths[documents], counts)
            plan = Plan.from_json(from_rank_zero(request.text))
            num_targets = float(np.sum(counts))
            total += num_targets * self._worker.evaluate(plan, TokenReader(data, documents))
            targets += num_targets
        return total / targets
