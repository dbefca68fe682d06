from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.drawn import CAP, COST, long_tail
from hydraulis import BalanceOptions, balance
from hydraulis.batching import SequenceCost, StepItems, StepPlan, StepPlanner

BARRIERS: list[Literal["step", "micro_batch"]] = ["step", "micro_batch"]


def planned(lengths: Any, *, work: Any = None, extra: Any = None, **options: Any) -> StepPlan:
    lengths = np.asarray(lengths, dtype=np.int64)
    defaults: dict[str, Any] = {"ranks": 4, "cap_tokens": CAP, "cost": COST}
    planner = StepPlanner(**(defaults | options))
    times = None if work is None else planner.cost.times(lengths) + work
    return planner.plan(StepItems(np.arange(len(lengths)) + 1000, lengths, times, extra))


def places(plan: StepPlan) -> list[list[list[int]]]:
    return [[[int(i) - 1000 for i in part] for part in rank] for rank in plan.micro_batches]


def time_by_hand(plan: StepPlan, lengths: Any, barrier: str) -> float:
    times = COST.times(lengths)
    totals = [[sum(times[i - 1000] for i in part) for part in rank] for rank in plan.micro_batches]
    return max(map(sum, totals)) if barrier == "step" else sum(map(max, zip(*totals, strict=True)))


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro_batches": 9},
        {"least_micro_batches": 9, "multiple_of": 2},
        {"equal_sequences": True},
        {"speeds": (1.0, 1.0, 0.5, 1.0)},
        {"cap_extra_tokens": 300},
    ],
)
def test_the_plan_is_that_of_balance_with_every_option(
    barrier: Literal["step", "micro_batch"], options: dict[str, Any]
) -> None:
    lengths = long_tail(100)
    work = np.linspace(0, 1e7, 100)
    extra = np.arange(100) if "cap_extra_tokens" in options else None
    cost = SequenceCost(COST.linear, COST.quadratic, fixed=1e6)
    expected = balance(
        lengths,
        replicas=4,
        cap_tokens=CAP,
        barrier=barrier,
        work_ms=cost.times(lengths) + work,
        extra_tokens=extra,
        options=BalanceOptions(fixed_ms=cost.fixed, **options),
    )
    plan = planned(lengths, barrier=barrier, work=work, extra=extra, cost=cost, **options)
    assert places(plan) == expected.micro_batches
    assert (plan.time, plan.lower_bound) == (expected.iteration_ms, expected.lower_bound_ms)
    counts = [len(rank) for rank in plan.micro_batches]
    if "micro_batches" in options:
        assert counts == [9] * 4
    if "multiple_of" in options:
        assert min(counts) >= 10
        assert all(count % 2 == 0 for count in counts)
    if "equal_sequences" in options:
        assert {sum(map(len, rank)) for rank in plan.micro_batches} == {25}
    if "speeds" in options:
        times = cost.times(lengths) + work
        totals = [sum(float(times[part].sum()) for part in rank) for rank in places(plan)]
        assert totals[2] < 0.8 * totals[0]
    if extra is not None:
        assert max(int(extra[part].sum()) for rank in places(plan) for part in rank) <= 300


@settings(max_examples=80)
@given(
    lengths=st.lists(st.integers(1, CAP), min_size=24, max_size=120),
    barrier=st.sampled_from(BARRIERS),
    slack=st.integers(0, 3),
)
def test_a_replica_has_an_exact_number_of_micro_batches(
    lengths: list[int], barrier: Literal["step", "micro_batch"], slack: int
) -> None:
    """Twice the tokens always fit, because two neighbours of first-fit packing exceed a cap together."""
    count = -(-2 * sum(lengths) // (3 * CAP)) + 1 + slack
    exact = 3 * count <= len(lengths)
    plan = planned(lengths, ranks=3, micro_batches=count, barrier=barrier, allow_empty=not exact)
    assert [len(rank) for rank in plan.micro_batches] == [count] * 3
    parts = [part.tolist() for rank in plan.micro_batches for part in rank]
    assert sorted(i for part in parts for i in part) == list(range(1000, 1000 + len(lengths)))
    assert all(sum(lengths[i - 1000] for i in part) <= CAP for part in parts)
    assert not exact or all(parts)
    assert plan.time == pytest.approx(time_by_hand(plan, lengths, barrier))
    assert plan.time >= plan.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("count", [5, 6, 7, 9])
def test_an_exact_number_costs_little(barrier: Literal["step", "micro_batch"], count: int) -> None:
    lengths = np.concatenate([long_tail(80, seed, longest=400) for seed in range(4)])[:110]
    plan = planned(lengths, micro_batches=count, barrier=barrier)
    assert plan.time < 1.04 * plan.lower_bound


def test_a_rank_without_sequences_takes_part_in_the_step() -> None:
    plan = planned([5, 6], barrier="step", allow_empty=True)
    assert [[part.tolist() for part in rank] for rank in plan.micro_batches] == [
        [[1001]],
        [[1000]],
        [[]],
        [[]],
    ]


def test_the_fixed_time_counts_for_each_micro_batch() -> None:
    lengths = [600] * 8
    free = planned(lengths)
    fixed = planned(lengths, cost=type(COST)(COST.linear, COST.quadratic, fixed=7.0))
    assert fixed.time - free.time == pytest.approx(2 * 7.0)


def test_the_same_step_has_the_same_plan() -> None:
    plans = [planned(long_tail(200), micro_batches=20) for _ in range(2)]
    parts = [[part.tolist() for rank in plan.micro_batches for part in rank] for plan in plans]
    assert parts[0] == parts[1]


@pytest.mark.parametrize("option", ["multiple_of", "least_micro_batches"])
def test_ranks_without_sequences_have_the_number_of_micro_batches(option: str) -> None:
    options: dict[str, Any] = {option: 4}
    planner = StepPlanner(ranks=8, cap_tokens=100, cost=COST, barrier="step", allow_empty=True, **options)
    plan = planner.plan(StepItems(np.arange(6), np.full(6, 50)))
    assert [len(rank) for rank in plan.micro_batches] == [4] * 8
