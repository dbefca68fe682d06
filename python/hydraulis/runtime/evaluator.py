"""The loss on held-out sequences."""

from functools import partial

import numpy as np

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.corpus import Corpus
from hydraulis.data.dataset import Dataset, SequenceSource
from hydraulis.data.sampling.evaluation_batches import (
    EvaluatedSource,
    fingerprint_evaluated,
    make_evaluation_batches,
)
from hydraulis.runtime.batch import Batch, plan_on_rank_zero
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.records.evaluation import Evaluation, SourceLoss
from hydraulis.runtime.step import evaluate
from hydraulis.runtime.worker import Worker


class Evaluator:
    """Evaluates held-out sequences source by source, in batches of training's size, planned as in training.

    The batches never change, so later evaluations use the plans of the first one.

    Args:
        config: Configuration of the run, with the interval and size of evaluations and the size of a batch.
        data: Held-out sequences, the same on every rank; None if there are none.
        worker: This rank's worker.
        planner: Planner of the batches; asked on rank 0 only.
    """

    def __init__(
        self, config: RunConfig, data: Dataset | Corpus | None, worker: Worker, planner: RunPlanner
    ) -> None:
        self._config = config
        self._data = data
        self._worker = worker
        self._planner = planner
        self._sources: list[EvaluatedSource] = []
        self._plans: dict[tuple[int, int], Plan] = {}

    def after(self, step: int) -> Evaluation | None:
        """Evaluate if an evaluation is due after `step` completed steps. Collective.

        One is due after the last step too, so the final model is evaluated.

        Raises:
            HydraulisError: As in training (see `iterations`).
        """
        train = self._config.train
        if self._data is None or not train.is_due(train.evaluate_every, step):
            return None
        limit = train.evaluate_sequences
        if not self._sources:
            self._sources = make_evaluation_batches(self._config.data, self._data, limit)
        losses = [self._evaluated(self._data, source) for source in self._sources]
        shares = [source.share for source in self._sources]
        mean = sum(share * one.loss for share, one in zip(shares, losses, strict=True)) / sum(shares)
        of_sources = tuple(losses) if len(losses) > 1 else ()
        return Evaluation(step, mean, fingerprint_evaluated(self._data, limit), of_sources)

    def _evaluated(self, data: SequenceSource, source: EvaluatedSource) -> SourceLoss:
        """Return the mean loss over the targets of one source, in nats."""
        total = targets = 0.0
        for number, indices in enumerate(source.batches):
            batch = Batch(data, indices)
            place = source.source, number
            if place not in self._plans:
                self._plans[place] = plan_on_rank_zero(partial(self._plan, batch))
            plan = self._plans[place]
            num_targets = float(np.sum(plan.targets))
            total += num_targets * evaluate(self._worker, plan, batch.read)
            targets += num_targets
        return SourceLoss(source.source, total / targets, int(targets))

    def _plan(self, batch: Batch) -> Plan:
        return batch.plan(self._planner).plan
