"""Workers of test_step_batches.py."""

import dataclasses
from typing import Any, NamedTuple

import torch

from hydraulis import LookaheadPlan, Strategy
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.errors import HydraulisError
from hydraulis.runtime.loop import iterations
from hydraulis.runtime.planning.step_batches import StepPosition
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.worker import Worker
from runtime.gathered import gather
from runtime.one_process import OPTIMIZER
from runtime.tiny import made_up_corpus, planner_for, run_config, train_config
from runtime.worker_workers import SEED

STRATEGIES = ("2x<1>", "1x<tp2>", "1x<pp2>")
# Of the order of the data; with it the first group moves sequences.
ORDER_SEED = 0


class Trained(NamedTuple):
    """One step, as a rank sees it; the parameters on rank 0 alone."""

    plan: str
    group: BatchGroup
    moved: int
    loss: float
    gradient_norm: float
    parameters: dict[str, torch.Tensor] | None


def lookahead_config(steps: int, lookahead: int) -> RunConfig:
    """Plan groups of steps, in which each sequence may move to each step."""
    config = run_config(steps, STRATEGIES)
    train = dataclasses.replace(config.train, seed=ORDER_SEED)
    planner = dataclasses.replace(config.planner, lookahead=lookahead, max_delay=max(1, lookahead - 1))
    return dataclasses.replace(config, train=train, planner=planner)


def train(steps: int, lookahead: int, position: StepPosition) -> list[Trained]:
    """Train in float64 from a position on, with new parameters."""
    config = lookahead_config(steps, lookahead)
    settings = train_config(dtype=torch.float64, steps=steps, seed=SEED)
    schemes = {scheme for text in STRATEGIES for scheme in Strategy(text).schemes}
    worker = Worker(config.model, OPTIMIZER, settings, schemes=sorted(schemes))
    corpus, planner = made_up_corpus(config.model.vocab_size), planner_for(2, STRATEGIES)
    trained = []
    with StopRequest() as stop:
        for iteration in iterations(config, corpus, worker, planner, stop, position):
            shard, metrics = worker.optimizer_shard, iteration.metrics
            trained.append(
                Trained(
                    iteration.plan.to_json(),
                    iteration.group,
                    metrics.moved,
                    metrics.loss,
                    metrics.gradient_norm,
                    gather(shard, shard.master),
                )
            )
    return trained


class BrokenLookahead:
    """Plans like another planner, and finds something wrong with every plan of several batches."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    def plan_lookahead(self, *of: Any, **more: Any) -> LookaheadPlan:
        planned: LookaheadPlan = self._planner.plan_lookahead(*of, **more)
        return planned

    def check_lookahead(self, *_: Any, **__: Any) -> list[str]:
        return ["sequence_missing: sequence 3 of batch 1 is in no step"]


def refused() -> tuple[str, str]:
    config = lookahead_config(4, 4)
    schemes = {scheme for text in STRATEGIES for scheme in Strategy(text).schemes}
    worker = Worker(config.model, config.optimizer, config.train, schemes=sorted(schemes))
    broken: Any = planner_for(2, STRATEGIES)
    broken._planner = BrokenLookahead(broken._planner)
    with StopRequest() as stop:
        try:
            for _ in iterations(config, made_up_corpus(256), worker, broken, stop):
                pass
        except HydraulisError as error:
            return error.code, str(error)
    return "", ""
