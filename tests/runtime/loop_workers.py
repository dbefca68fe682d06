"""Workers of test_loop.py."""

import os
import signal
from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hydraulis import Planner
from hydraulis.config.run import RunConfig
from hydraulis.errors import HydraulisError
from hydraulis.runtime.loop import iterations
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.worker import Worker
from runtime.collective_counts import counted_collectives
from runtime.tiny import made_up_corpus, planner_for, run_config

STRATEGIES = ("2x<1>", "1x<tp2>", "1x<pp2>")


class Report(NamedTuple):
    """What one rank saw of a run."""

    metrics: list[StepMetrics]
    plans: list[str]
    num_timelines: list[int]
    error: tuple[str, str, str] | None


class BrokenPlanner:
    """Plans like another one, and finds something wrong with every plan."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def plan(self, *batch: Any, **more: Any) -> Any:
        return self._planner.plan(*batch, **more)

    def check(self, *_: Any) -> list[str]:
        return ["sequence 3 is in two micro-batches", "rank 1 is used twice"]


def train(steps: int, *, longest: int = 64, interrupt: bool = False, stop_rank: int = 1) -> Report:
    """Run the loop; after the second iteration one rank is asked to stop, if so wanted."""
    config = run_config(steps, STRATEGIES)
    planner = planner_for(dist.get_world_size(), STRATEGIES)
    return _run(config, planner, make(config), longest=longest, stop_rank=stop_rank if interrupt else None)


def train_twice(steps: int) -> tuple[Report, Report]:
    return train(steps), train(steps)


def refused() -> list[Report]:
    """Meet a document that no strategy admits, a plan that breaks its promises, and a loss of NaN."""
    config = run_config(3, STRATEGIES)
    planner = planner_for(dist.get_world_size(), STRATEGIES)
    diverged = make(config)
    diverged.optimizer_shard.master.fill_(torch.nan)
    broken: Any = planner_for(dist.get_world_size(), STRATEGIES)
    broken._planner = BrokenPlanner(broken._planner)
    return [
        _run(config, planner, make(config), longest=100, stop_rank=None),
        _run(config, broken, make(config), longest=64, stop_rank=None),
        _run(config, planner, diverged, longest=64, stop_rank=None),
    ]


def interrupted(stop_rank: int) -> Report:
    return train(50, interrupt=True, stop_rank=stop_rank)


def collectives_of_steps(steps: int) -> list[Counter[str]]:
    """Count the collectives over all ranks in each iteration of the loop after the first."""
    config = run_config(steps, STRATEGIES)
    planner, worker = planner_for(dist.get_world_size(), STRATEGIES), make(config)
    corpus = made_up_corpus(config.model.vocab_size)
    seen = []
    with StopRequest() as stop, counted_collectives() as counts:
        for _ in iterations(config, corpus, worker, planner, stop):
            seen.append(counts.copy())
            counts.clear()
    return seen[1:]


def make(config: RunConfig) -> Worker:
    from hydraulis import Strategy

    schemes = {scheme for text in config.planner.strategies for scheme in Strategy(text).schemes}
    return Worker(config.model, config.optimizer, config.train, schemes=sorted(schemes))


def _run(
    config: RunConfig, planner: RunPlanner, worker: Worker, *, longest: int, stop_rank: int | None
) -> Report:
    corpus = made_up_corpus(config.model.vocab_size, longest=longest)
    report = Report([], [], [], None)
    with StopRequest() as stop:
        try:
            for iteration in iterations(config, corpus, worker, planner, stop):
                report.metrics.append(iteration.metrics)
                report.plans.append(iteration.plan.to_json())
                report.num_timelines.append(len(iteration.result.measured.timelines))
                if iteration.metrics.step == 2 and dist.get_rank() == stop_rank:
                    os.kill(os.getpid(), signal.SIGINT)
        except HydraulisError as error:
            return report._replace(error=(type(error).__name__, error.code, str(error)))
    return report
