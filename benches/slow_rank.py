"""A rank that computes twice as long, on the CPU: plans with its measured rate against plans for equal ranks.

    python -m benches.slow_rank [--strategy TEXT] [--steps N] [--slow-from N] [--tokens N] [--longest N]
        [--json FILE]

Four ranks of one thread train a small decoder on the interpreter's own standard library. From a step on, one
rank does each of its computations twice: before a micro-batch's forward it runs the stage's forward and
backward on the same tokens and drops the results, so its work is real and its gradients are the same. Two
runs take turns, step by step, on the same batches: one plans by measured rates (`planner.slow_rank`), one for
equal ranks. Both see the same noise of the machine, and their losses must agree.

The figure is the CPU time of the slowest rank's computations, which the wall would show with a core for each
rank.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from benches.small_run import (
    LOSS_TOLERANCE,
    add_options,
    measured_profile,
    run_config,
    start_ranks,
    training_data,
)
from torch import Tensor

from hydraulis import Cluster, Strategy
from hydraulis._core import CostProfile, Position
from hydraulis.config.kinds import ContextKind
from hydraulis.config.run import RunConfig
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.data.dataset import Dataset
from hydraulis.runtime.loop import iterations
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.worker import Worker

BAR = 1.4
"""Least ratio of the two ways' times once the rate is known."""
SLOW_RANK = 2


class Doubling:
    """Lets the stages of a worker compute everything twice, once it is on.

    Args:
        worker: Worker of this rank; its later stages are covered.

    Attributes:
        is_on: Whether computations are doubled.
    """

    def __init__(self, worker: Worker) -> None:
        self.is_on = False
        self._make = worker.stage
        self._forward: dict[int, Callable[..., Tensor]] = {}
        worker.stage = self._stage  # type: ignore[method-assign]

    def _stage(self, position: Position, context: ContextKind | None) -> Stage:
        stage = self._make(position, context)
        if id(stage) not in self._forward:
            usual = self._forward[id(stage)] = stage.forward

            def forward(input_tH: Tensor | None, packed: PackedMicroBatch, denominator: int) -> Tensor:
                if self.is_on:
                    again = None if input_tH is None else input_tH.detach().requires_grad_().clone()
                    wanted = [*stage.trained.values(), *([] if again is None else [again])]
                    torch.autograd.grad(usual(again, packed, denominator).sum(), wanted, allow_unused=True)
                return usual(input_tH, packed, denominator)

            setattr(stage, "forward", forward)  # noqa: B010
        return stage


class Way:
    """One of the two runs.

    Args:
        config: Configuration of the run.
        worker: This rank's worker.
        planner: Planner of the run.
        data: Training data.
        stop: Request to stop, never made.

    Attributes:
        losses: Loss of each step.
        computed_ms: Computation time of this rank in each step.
        rates: Rates that each step was planned with; empty for equal ranks.
        changes: Step, rank and slowdown of each rank that became slow or recovered, on rank 0.
    """

    def __init__(
        self, config: RunConfig, worker: Worker, planner: RunPlanner, data: Dataset, stop: StopRequest
    ) -> None:
        self.losses: list[float] = []
        self.computed_ms: list[float] = []
        self.rates: list[tuple[float, ...]] = []
        self.changes: list[tuple[int, int, float]] = []
        self._planner = planner
        self._last_ms = 0.0
        read = worker.timers.read

        def kept() -> Any:
            times = read()
            self._last_ms = sum(times.computed_ms)
            return times

        worker.timers.read = kept  # type: ignore[method-assign]
        self._iterations = iterations(config, data, worker, planner, stop)

    def step(self) -> None:
        """Run a step. Collective."""
        iteration = next(self._iterations)
        measured = iteration.result.measured
        if dist.get_rank() == 0:
            found = self._planner.observe_ranks(iteration.plan, measured.computed_ms)
            self.changes += [(iteration.metrics.step, *change) for change in found]
        self.losses.append(iteration.result.loss)
        self.computed_ms.append(self._last_ms)
        self.rates.append(iteration.metrics.rank_rates)


class Result(NamedTuple):
    """The figures of both ways, on rank 0.

    Attributes:
        slowest_ms: Time of the slowest rank's computations in each step, by way.
        rates: Rates that the steps of the way with rates were planned with.
        changes: Step, rank and slowdown of each rank that was found slow or recovered.
        loss_difference: Largest relative difference of the two ways' losses.
    """

    slowest_ms: dict[str, list[float]]
    rates: list[tuple[float, ...]]
    changes: list[tuple[int, int, float]]
    loss_difference: float

    def known_from(self) -> int:
        """Return the first step that was planned with a lower rate; steps count from 1."""
        return next(number for number, rates in enumerate(self.rates, 1) if rates)

    def ratio(self) -> float:
        """Return the time for equal ranks over the time with rates, from the first step with the rate on."""
        first = self.known_from() - 1
        equal, measured = (sum(self.slowest_ms[way][first:]) for way in ("equal", "rates"))
        return equal / measured


def compare(
    arguments: argparse.Namespace,
    data: Dataset,
    profile_of: Callable[[Worker], CostProfile],
    prepare: Callable[[Worker], None] = lambda _: None,
) -> Result | None:
    """Train both ways. Collective.

    Args:
        arguments: Settings of the comparison.
        data: Training data.
        profile_of: Function that returns the cost profile of the strategy's schemes. Collective.
        prepare: Function that changes a worker before its first step.

    Returns:
        The figures on rank 0.
    """
    cluster = Cluster(dist.get_world_size(), dist.get_world_size())
    schemes = Strategy(arguments.strategy).schemes
    ways, doublings, profile = {}, [], None
    with StopRequest() as stop:
        for name, slow_rank in (("equal", 0.0), ("rates", 1.5)):
            config = run_config(arguments, [arguments.strategy], slow_rank=slow_rank)
            worker = Worker(config.model, config.optimizer, config.train, schemes=schemes)
            profile = profile or profile_of(worker)
            prepare(worker)
            doublings.append(Doubling(worker))
            ways[name] = Way(config, worker, RunPlanner(config.planner, profile, cluster), data, stop)
        for number in range(1, arguments.steps + 1):
            for doubling in doublings:
                doubling.is_on = dist.get_rank() == SLOW_RANK and number >= arguments.slow_from
            for way in ways.values():
                way.step()
    by_rank = host.gather_objects({name: way.computed_ms for name, way in ways.items()})
    if by_rank is None:
        return None
    pairs = zip(ways["equal"].losses, ways["rates"].losses, strict=True)
    return Result(
        {
            name: [max(times) for times in zip(*(rank[name] for rank in by_rank), strict=True)]
            for name in ways
        },
        ways["rates"].rates,
        ways["rates"].changes,
        max(abs(rates / equal - 1) for equal, rates in pairs),
    )


def measure(arguments: argparse.Namespace) -> None:
    """Be one rank."""
    with joined(timedelta(seconds=120)):
        config = run_config(arguments, [arguments.strategy])
        data = training_data(config)

        def profile_of(worker: Worker) -> CostProfile:
            return measured_profile(config, worker, arguments.longest, arguments.profile_seconds)

        result = compare(arguments, data, profile_of)
        if result is not None:
            report(result, arguments)


def report(result: Result, arguments: argparse.Namespace) -> None:
    """Print the figures, and write them where that was asked for."""
    for step, rank, slowdown in result.changes:
        sys.stdout.write(f"after step {step}: rank {rank} has slowdown {slowdown:g}\n")
    known = result.known_from()
    sys.stdout.write(f"slow from step {arguments.slow_from}, planned with its rate from step {known}\n")
    row = "{:<8} {:>28} {:>28}\n"
    sys.stdout.write(row.format("plans", "slowest rank before, ms", "slowest rank after, ms"))
    for way, times in result.slowest_ms.items():
        spans: Sequence[Sequence[float]] = (times[: arguments.slow_from - 1], times[known - 1 :])
        means = (sum(span) / max(1, len(span)) for span in spans)
        sys.stdout.write(row.format(way, *(f"{mean:,.0f}" for mean in means)))
    sys.stdout.write(f"plans with rates are {result.ratio():.2f} times as fast; the bar is {BAR}\n")
    sys.stdout.write(f"losses differ by {result.loss_difference:.1e} at most\n")
    if arguments.json:
        figures = result._asdict() | {"settings": vars(arguments)}
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    assert result.loss_difference < LOSS_TOLERANCE, "both ways train the same model on the same tokens"


def parser() -> argparse.ArgumentParser:
    """Declare the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--strategy", default="4x<1>", help="without tensor and context ranks")
    options.add_argument("--slow-from", type=int, default=7, metavar="STEP", help="first step of double work")
    options.add_argument("--tokens", type=int, default=16_384, help="of a global batch")
    options.add_argument("--longest", type=int, default=1024, help="tokens; longer sequences are cut")
    add_options(options)
    return options


def main() -> int:
    """Start the ranks, or be one of them."""
    arguments = parser().parse_args()
    if arguments.as_rank:
        measure(arguments)
        return 0
    return start_ranks("benches.slow_rank", 4)


if __name__ == "__main__":
    sys.exit(main())
