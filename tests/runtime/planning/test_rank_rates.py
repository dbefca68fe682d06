"""Slow ranks are found by their own computations, planned for within three iterations, and come back."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from hydraulis import Cluster, Planner
from hydraulis.runtime.planning.rank_rates import LEAST_MS, RankRates, RateChange
from profiles import made_up_profile

RANKS = 4
PROFILE = made_up_profile({"<1>": 256, "<tp2>": 512, "<pp2>": 256, "<tp4>": 1024})
# Ten times as many milliseconds as the profile says: its unit is not that of the clock.
UNIT = 1e3
LENGTHS = [60, 31, 30, 22, 19, 17, 15, 12, 9, 9, 5, 2] * 4
Noise = Callable[[int, int], float]


class MadeUpRun:
    """A run of four ranks in which each rank computes as fast as stated.

    Args:
        strategy: the strategy of all plans.
        slowdowns: how many times as long each rank computes.
        waits: whether each rank of a stage has the time of the slowest.
        noise: a factor for each step and rank.
        usual: rate of each rank that is not slow.
    """

    def __init__(
        self,
        strategy: str,
        slowdowns: Mapping[int, float],
        *,
        waits: bool = False,
        noise: Noise = lambda _step, _rank: 1.0,
        threshold: float = 1.5,
        usual: Sequence[float] = (1.0,) * RANKS,
    ) -> None:
        self.strategy = strategy
        self.slowdowns = dict(slowdowns)
        self.waits = waits
        self.noise = noise
        self.unit = UNIT
        self.usual = usual
        self.known = RankRates(usual, threshold, includes_waits=waits)
        self.changes: list[tuple[int, RateChange]] = []
        self.step = 0
        self.iteration_ms = 0.0

    def steps(self, number: int, lengths: Sequence[int] = LENGTHS) -> "MadeUpRun":
        """Plan each step with the known rates, and observe it."""
        for _ in range(number):
            self.step += 1
            rates = self.known.rates or [1.0] * RANKS
            usual_and_own = zip(self.usual, rates, strict=True)
            cluster = Cluster(RANKS, RANKS, rates=[usual * own for usual, own in usual_and_own])
            planner = Planner(PROFILE, cluster, strategies=[self.strategy])
            plan = planner.plan(lengths)
            computed: list[float | None] = [0.0] * RANKS
            for replica in plan.replicas:
                ids = [sequences for sequences in replica.micro_batches if sequences]
                full_ms = self.unit * sum(
                    PROFILE.micro_batch_ms(replica.scheme, plan.lengths[one].tolist()) for one in ids
                )
                for stage in replica.stages:
                    each = {rank: self.slowdowns.get(rank, 1.0) / self.usual[rank] for rank in stage}
                    for rank in stage:
                        slowdown = max(each.values()) if self.waits else each[rank]
                        computed[rank] = full_ms * slowdown * self.noise(self.step, rank)
            self.iteration_ms = max(ms for ms in computed if ms is not None)
            changes = self.known.observe(plan, planner.timeline(plan), computed)
            self.changes += [(self.step, change) for change in changes]
        return self


def test_equal_ranks_are_never_slow() -> None:
    run = MadeUpRun("4x<1>", {}).steps(8)
    assert run.known.rates is None
    assert run.changes == []


@pytest.mark.parametrize("strategy", ["4x<1>", "2x<tp2>", "2x<pp2>", "1x<tp4>"])
def test_a_slow_rank_has_its_rate_after_two_steps_and_is_reported_once(strategy: str) -> None:
    run = MadeUpRun(strategy, {2: 2.0})
    assert run.steps(1).known.rates is None
    assert run.steps(1).known.slowdowns == [1.0, 1.0, 2.0, 1.0]
    assert run.steps(10).changes == [(2, RateChange(2, 2.0))]
    assert run.known.rates == [1.0, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("strategy", ["4x<1>", "2x<tp2>", "2x<pp2>", "1x<tp4>"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_device_with_another_rate_is_not_slow(strategy: str, *, waits: bool) -> None:
    run = MadeUpRun(strategy, {}, waits=waits, usual=[1.0, 1.0, 0.25, 3.0]).steps(6)
    assert run.known.rates is None
    assert run.changes == []


@pytest.mark.parametrize("strategy", ["4x<1>", "2x<tp2>", "2x<pp2>", "1x<tp4>"])
def test_a_slow_rank_is_slow_relative_to_its_device(strategy: str) -> None:
    run = MadeUpRun(strategy, {3: 2.0}, usual=[1.0, 1.0, 0.25, 3.0]).steps(6)
    assert run.known.rates == [1.0, 1.0, 1.0, 0.5]
    assert run.changes == [(2, RateChange(3, 2.0))]


def test_all_ranks_of_a_device_with_too_short_times_are_slow() -> None:
    run = MadeUpRun("4x<1>", {2: 1.6, 3: 1.6}, usual=[1.0, 1.0, 3.0, 3.0]).steps(3)
    assert run.known.rates == [1.0, 1.0, 0.625, 0.625]
    assert len(run.changes) == 2


def test_plans_with_the_rate_take_a_fraction_of_the_time() -> None:
    run = MadeUpRun("4x<1>", {2: 2.0})
    usual = run.steps(1).iteration_ms
    assert usual > 1.4 * run.steps(3).iteration_ms


def test_a_rank_that_recovers_comes_back() -> None:
    run = MadeUpRun("4x<1>", {2: 2.0}).steps(5)
    run.slowdowns = {}
    assert run.steps(1).known.slowdowns[2] == 2.0
    assert run.steps(1).known.rates is None
    assert run.steps(5).changes == [(2, RateChange(2, 2.0)), (7, RateChange(2, 1.0))]
    run.slowdowns = {2: 3.0}
    assert run.steps(2).changes[2:] == [(14, RateChange(2, 3.0))]


def test_a_rank_between_the_thresholds_keeps_its_state() -> None:
    run = MadeUpRun("4x<1>", {1: 1.4}).steps(5)
    assert run.known.rates is None
    run.slowdowns = {1: 1.6}
    assert run.steps(5).known.slowdowns[1] == 1.6
    run.slowdowns = {1: 1.4}
    # 1.4 is within 15 % of 1.6, and 1.3 is not: the rate follows, and the rank is slow still.
    assert run.steps(5).known.slowdowns[1] == 1.6
    run.slowdowns = {1: 1.3}
    assert run.steps(5).known.slowdowns[1] == 1.3
    assert [change for _, change in run.changes] == [RateChange(1, 1.6)]
    run.slowdowns = {1: 1.2}
    assert run.steps(5).known.rates is None


def test_single_outliers_change_nothing() -> None:
    run = MadeUpRun("4x<1>", {}, noise=lambda step, rank: 3.0 if step % 3 == 0 and rank == 1 else 1.0)
    assert run.steps(30).changes == []
    slow = MadeUpRun("4x<1>", {2: 2.0}, noise=lambda step, rank: 0.5 if step % 3 == 0 and rank == 2 else 1.0)
    assert slow.steps(30).changes == [(2, RateChange(2, 2.0))]


def test_a_wrong_profile_makes_no_rank_slow() -> None:
    run = MadeUpRun("4x<1>", {}).steps(3)
    run.unit *= 20
    assert run.steps(5).changes == []


def test_half_of_the_ranks_may_be_slow() -> None:
    run = MadeUpRun("4x<1>", {0: 2.5, 3: 2.0}).steps(4)
    assert run.known.slowdowns == [2.5, 1.0, 1.0, 2.0]
    run.slowdowns = {}
    assert run.steps(4).known.rates is None


def test_when_slow_ranks_that_are_the_majority_recover_all_are_equal() -> None:
    run = MadeUpRun("4x<1>", {0: 2.0}).steps(4)
    run.slowdowns = {0: 2.0, 1: 2.0}
    run.steps(4)
    run.slowdowns = {0: 2.0, 1: 2.0, 3: 2.0}
    assert run.steps(4).known.slowdowns == [2.0, 2.0, 1.0, 2.0]
    run.slowdowns = {}
    assert run.steps(6).known.rates is None


def test_a_group_that_waits_for_its_slowest_rank_is_slow_as_one() -> None:
    run = MadeUpRun("2x<tp2>", {3: 2.0}, waits=True).steps(4)
    assert run.known.slowdowns == [1.0, 1.0, 2.0, 2.0]
    # Alone, the rank that only waited recovers, and the slow one stays slow.
    run.strategy = "4x<1>"
    assert run.steps(2).known.slowdowns == [1.0, 1.0, 1.0, 2.0]
    # Together again, the known rank explains the time of both.
    run.strategy = "2x<tp2>"
    assert run.steps(5).known.slowdowns == [1.0, 1.0, 1.0, 2.0]
    # All are slower than it explains: both become slower.
    run.slowdowns = {3: 4.0}
    assert run.steps(3).known.slowdowns == [1.0, 1.0, 4.0, 4.0]
    run.slowdowns = {}
    assert run.steps(3).known.rates is None


def test_a_stage_that_others_wait_for_is_slow_alone() -> None:
    run = MadeUpRun("1x<pp2>+2x<1>", {1: 3.0}, waits=True).steps(4)
    assert run.known.slowdowns == [1.0, 3.0, 1.0, 1.0]


def test_short_steps_are_no_observation() -> None:
    run = MadeUpRun("4x<1>", {2: 2.0})
    run.unit = LEAST_MS / 1e3
    assert run.steps(5).known.rates is None
    run.unit = UNIT
    assert run.steps(2).known.rates is not None


def test_times_that_are_not_comparable_are_no_observation() -> None:
    planner = Planner(PROFILE, Cluster(RANKS, RANKS), strategies=["4x<1>"])
    plan = planner.plan(LENGTHS)
    known = RankRates([1.0] * RANKS, 1.5, includes_waits=False)
    for _ in range(5):
        assert known.observe(plan, planner.timeline(plan), [1e3, 1e3, None, 1e3]) == []
        assert known.observe(plan, planner.timeline(plan), [None] * RANKS) == []
    known.observe(plan, planner.timeline(plan), [1e3, 1e3, 2e3, 1e3])
    assert known.rates is None
    (change,) = known.observe(plan, planner.timeline(plan), [1e3, 1e3, 2e3, 1e3])
    assert change.rank == 2


def test_a_slow_rank_without_work_is_tried_again_ever_more_rarely() -> None:
    run = MadeUpRun("3x<1>", {1: 2.0})
    # Its replica is not among the fastest three.
    assert run.steps(2).known.slowdowns[1] == 2.0
    # Planned at full rate after 32 steps without work, and slow again after two more.
    assert run.steps(31).known.slowdowns[1] == 2.0
    assert run.steps(1).known.rates is None
    assert run.steps(2).known.slowdowns[1] == 2.0
    assert all(run.steps(1).known.slowdowns[1] == 2.0 for _ in range(63))
    run.slowdowns = {}
    assert run.steps(10).known.rates is None
    assert [change for _, change in run.changes] == [RateChange(1, 2.0), RateChange(1, 1.0)]


def test_a_resumed_run_continues_with_the_rates_of_equally_many_ranks() -> None:
    run = MadeUpRun("4x<1>", {2: 2.0}).steps(4)
    resumed = MadeUpRun("4x<1>", {2: 2.0})
    assert run.known.rates is not None
    resumed.known.resume(run.known.rates)
    assert resumed.known.rates == run.known.rates
    # It was reported before.
    assert resumed.steps(4).changes == []
    resumed.slowdowns = {}
    assert resumed.steps(2).changes == [(6, RateChange(2, 1.0))]
    other = RankRates([1.0, 1.0], 1.5, includes_waits=False)
    other.resume(run.known.rates)
    assert other.rates is None
