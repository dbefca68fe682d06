"""Workers of test_evaluator.py."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hydraulis import Strategy
from hydraulis.data.corpus import Corpus
from hydraulis.data.open import make_datasets
from hydraulis.runtime.batch import Batch
from hydraulis.runtime.evaluator import Evaluator
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker
from runtime.tiny import made_up_corpus, planner_for, run_config, train_config


class Evaluated(NamedTuple):
    """What one rank saw.

    Attributes:
        losses: Losses by strategy.
        trained: Losses by strategy of the same sequences in one batch that is trained on.
        untouched: Whether master parameters and gradients stayed the same.
        due: Steps, of ten, after which an evaluation was made.
        mixed: Evaluation of two sources with weights 3 and 1.
        alone: Loss of each of them.
        limited: Evaluation of the same sources, with 2 sequences of each.
    """

    losses: list[float]
    trained: list[float]
    untouched: bool
    due: list[int]
    mixed: Evaluation
    alone: list[float]
    limited: Evaluation


def evaluate(strategies: Sequence[str], frozen: Sequence[str]) -> Evaluated:
    config, corpus = run_config(1, strategies), made_up_corpus(256, longest=32)
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, evaluate_every=3, steps=10),
        data=dataclasses.replace(config.data, held_out=0.1),
    )
    schemes = sorted({scheme for text in strategies for scheme in Strategy(text).schemes})
    settings = train_config(dtype=torch.float64, frozen=tuple(frozen))
    worker = Worker(config.model, config.optimizer, settings, schemes=schemes)
    planners = [planner_for(dist.get_world_size(), [text]) for text in strategies]
    worker.optimizer_shard.gradient.fill_(7.0)
    before = worker.optimizer_shard.master.clone()
    evaluators = [Evaluator(config, corpus, worker, planner) for planner in planners]
    losses = [evaluation.loss for evaluator in evaluators if (evaluation := evaluator.after(3))]
    # A batch that is planned needs no second plan.
    evaluators[0]._planner = None  # type: ignore[assignment]
    evaluations = [evaluators[0].after(step) for step in range(1, 11)]
    due = [evaluation.step for evaluation in evaluations if evaluation is not None]
    again = [evaluation.loss for evaluation in evaluations if evaluation is not None]
    assert again == losses[:1] * len(due)
    assert Evaluator(config, None, worker, planners[0]).after(3) is None
    untouched = torch.equal(worker.optimizer_shard.master, before) and bool(
        worker.optimizer_shard.gradient.eq(7.0).all()
    )
    everything = Batch(corpus, np.arange(len(corpus)))
    plans = [planner.plan(corpus.lengths, corpus.target_counts) for planner in planners]
    trained = []
    for plan in plans:
        # The loss of a step is that before its update: each begins with the same parameters.
        worker.optimizer_shard.master.copy_(before)
        trained.append(train_step(worker, plan, everything.read).loss)
    worker.optimizer_shard.master.copy_(before)
    parts = two_sources()
    mixture = make_datasets(
        dataclasses.replace(config.data, held_out=0.0), [[part] for part in parts], [3.0, 1.0]
    ).train
    of_mixture = [
        Evaluator(dataclasses.replace(config, train=settings), mixture, worker, planners[0]).after(3)
        for settings in (config.train, dataclasses.replace(config.train, evaluate_sequences=2))
    ]
    of_parts = [Evaluator(config, part, worker, planners[0]).after(3) for part in parts]
    mixed, limited = (evaluation for evaluation in of_mixture if evaluation)
    alone = [evaluation.loss for evaluation in of_parts if evaluation]
    return Evaluated(losses, trained, untouched, due, mixed, alone, limited)


def two_sources() -> list[Corpus]:
    return [made_up_corpus(96, longest=32), made_up_corpus(160, longest=16)]
