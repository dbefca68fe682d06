"""The training loop: every rank sees the same plans, losses, errors and stops."""

import gc
import math

import numpy as np
import pytest

from hydraulis import Plan
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.data.tokens import plain_tokens
from hydraulis.runtime.batch import Batch
from hydraulis.runtime.loop import frozen_objects
from ranks import run_ranks
from runtime.loop_workers import STRATEGIES, Report, collectives_of_steps, interrupted, refused, train_twice
from runtime.tiny import SEED, made_up_corpus

STEPS = 4


@pytest.fixture(scope="module")
def runs() -> list[tuple[Report, Report]]:
    """By rank, two runs one after the other."""
    result: list[tuple[Report, Report]] = run_ranks(2, train_twice, STEPS)
    return result


@pytest.fixture(scope="module")
def reports(runs: list[tuple[Report, Report]]) -> list[Report]:
    return [first for first, _ in runs]


def test_every_rank_has_the_same_plans_and_losses(reports: list[Report]) -> None:
    first, second = reports
    assert len(first.metrics) == STEPS
    assert first.plans == second.plans
    assert [metrics.loss for metrics in first.metrics] == [metrics.loss for metrics in second.metrics]
    assert first.error is second.error is None


def test_metrics_describe_the_plan_and_the_batch(reports: list[Report]) -> None:
    corpus = made_up_corpus(256)
    sampler = BatchSampler(corpus.lengths, 120, SEED)
    for step, (metrics, text) in enumerate(zip(reports[0].metrics, reports[0].plans, strict=True)):
        plan = Plan.from_json(text)
        lengths = corpus.lengths[sampler.batch(step).sequences]
        assert np.array_equal(plan.lengths, lengths)
        assert np.array_equal(plan.targets, lengths - 1)
        assert metrics.step == step + 1
        assert metrics.sequences == len(lengths)
        assert metrics.tokens == lengths.sum()
        assert metrics.longest == lengths.max()
        assert metrics.strategy == plan.strategy
        assert metrics.strategy in STRATEGIES
        assert metrics.planned_ms == plan.iteration_ms
        assert metrics.lower_bound_ms == plan.lower_bound_ms
        assert 0 < metrics.lower_bound_ms <= metrics.planned_ms * (1 + 1e-9)
        assert 0 < metrics.loss < 2 * math.log(256)


def test_only_rank_zero_has_the_measured_times(reports: list[Report]) -> None:
    for metrics, num_timelines, text in zip(
        reports[0].metrics, reports[0].num_timelines, reports[0].plans, strict=True
    ):
        assert 0 < metrics.measured_ms < metrics.wall_ms
        assert metrics.plan_ms > 0
        assert 0 < metrics.plan_wait_ms < metrics.wall_ms
        assert metrics.memory_bytes > 0
        assert num_timelines == len(Plan.from_json(text).replicas)
    assert all(
        metrics.measured_ms == metrics.plan_ms == metrics.plan_wait_ms == 0 for metrics in reports[1].metrics
    )
    assert all(metrics.memory_bytes == 0 for metrics in reports[1].metrics)
    assert reports[1].num_timelines == [0] * STEPS


def test_the_same_seed_gives_the_same_losses_to_the_bit(runs: list[tuple[Report, Report]]) -> None:
    first, second = ([metrics.loss for metrics in report.metrics] for report in runs[0])
    assert len(set(first)) == STEPS
    assert first == second


def test_refusals_reach_every_rank_as_the_same_error() -> None:
    by_rank = run_ranks(2, refused)
    assert by_rank[0][0].error == by_rank[1][0].error
    too_long, broken, diverged = by_rank[0]
    assert too_long.error[:2] == ("InfeasibleError", "sequence_too_long")
    assert "100" in too_long.error[2]
    assert broken.error[:2] == ("HydraulisError", "plan_broken")
    assert "sequence 3 is in two micro-batches; rank 1 is used twice" in broken.error[2]
    assert diverged.error[:2] == ("HydraulisError", "loss_not_finite")
    # As the log counts.
    assert "step 1 " in diverged.error[2]
    for reports in zip(*by_rank, strict=True):
        assert reports[0].error == reports[1].error
        assert len(reports[0].metrics) == len(reports[1].metrics)
    assert broken.metrics == diverged.metrics == []


@pytest.mark.parametrize(("stop_rank", "last"), [(0, 2), (1, 3)])
def test_a_stop_on_one_rank_ends_all_after_the_same_step(stop_rank: int, last: int) -> None:
    # Asked after the second step: rank 0 says so in place of the next plan, rank 1 in the next step.
    first, second = run_ranks(2, interrupted, stop_rank)
    for report in (first, second):
        assert [metrics.step for metrics in report.metrics] == list(range(1, last + 1))
        assert report.error is None


def test_a_step_has_three_collectives_over_all_ranks() -> None:
    # The plan, the step's sums, and the measurements for rank 0.
    expected = {"broadcast": 1, "all_reduce": 1, "gather": 1}
    for by_step in run_ranks(2, collectives_of_steps, 3):
        assert by_step == [expected, expected]


def test_a_batch_may_have_a_sequence_twice() -> None:
    corpus = made_up_corpus(256)
    batch = Batch(corpus, np.array([5, 2, 5]))
    for sequence, document in enumerate((5, 2, 5)):
        assert np.array_equal(plain_tokens(batch.read(sequence)), plain_tokens(corpus.read(document)))


def test_objects_are_frozen_while_the_context_lasts_also_if_it_fails() -> None:
    gc.unfreeze()  # what other libraries froze, such as mypy
    with frozen_objects():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
    with pytest.raises(ZeroDivisionError), frozen_objects():
        raise ZeroDivisionError
    assert gc.get_freeze_count() == 0


def test_objects_that_were_frozen_before_stay_so_and_no_other_joins_them() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    made = [[number] for number in range(10_000)]
    with frozen_objects():
        # Nothing could thaw these alone: as garbage in a cycle they would stay for ever.
        assert gc.get_freeze_count() <= before
    assert gc.get_freeze_count() > before - len(made)
