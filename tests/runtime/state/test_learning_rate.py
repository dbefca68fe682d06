"""The schedules are torch's own, step by step."""

from collections.abc import Callable

import pytest
import torch
from torch.optim import Optimizer, lr_scheduler

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.runtime.state.learning_rate import learning_rate

STEPS, WARMUP, DECAY = 40, 8, 10
RATE, LEAST = 3e-3, 5e-4
Scheduler = Callable[[Optimizer], lr_scheduler.LRScheduler]


def line(first: float, last: float, steps: int) -> Scheduler:
    return lambda optimizer: lr_scheduler.LinearLR(optimizer, first, last, steps)


SCHEDULES: dict[str, tuple[list[Scheduler], list[int]]] = {
    "constant": ([line(1.0, 1.0, 1)], []),
    "cosine": ([lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP, LEAST)], []),
    "linear": ([line(1.0, LEAST / RATE, STEPS - WARMUP)], []),
    "wsd": ([line(1.0, 1.0, 1), line(1.0, LEAST / RATE, DECAY)], [STEPS - DECAY]),
}


def of_torch(name: str) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    after, later = SCHEDULES[name]
    schedulers = [make(optimizer) for make in (line(1 / WARMUP, 1.0, WARMUP - 1), *after)]
    schedule = lr_scheduler.SequentialLR(optimizer, schedulers, [WARMUP, *later])
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def config(name: str) -> OptimizerConfig:
    return OptimizerConfig(
        learning_rate=RATE,
        schedule=name,  # type: ignore[arg-type]
        warmup_steps=WARMUP,
        decay_steps=DECAY if name == "wsd" else 0,
        min_learning_rate=LEAST,
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_equals_torchs(name: str) -> None:
    rates = [learning_rate(config(name), step, STEPS) for step in range(STEPS)]
    assert rates == pytest.approx(of_torch(name), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, WARMUP, WARMUP + 1, DECAY, DECAY + 1])
def test_a_run_shorter_than_its_schedule_stays_within_its_rates(name: str, steps: int) -> None:
    for step in range(steps + 2):
        rate = learning_rate(config(name), step, steps)
        assert RATE / WARMUP <= rate <= RATE or rate == pytest.approx(LEAST)


def test_without_a_warmup_the_first_step_has_the_whole_rate() -> None:
    assert learning_rate(OptimizerConfig(learning_rate=RATE), 0, STEPS) == RATE
    assert learning_rate(OptimizerConfig(learning_rate=RATE, schedule="cosine"), 0, STEPS) == RATE
