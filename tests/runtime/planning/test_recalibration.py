"""What a run learns of its schemes' times."""

import json
from collections.abc import Sequence

import pytest

from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis._core import Backward, Forward, Span
from hydraulis.planner.devices import cluster_of_devices
from hydraulis.planner.profile_document import with_scaled_times
from hydraulis.runtime.planning.recalibration import BOUND, Recalibration
from profiles import made_up_profile

PROFILE = made_up_profile({"<1>": 64, "<tp2>": 128, "<pp2>": 64})
LENGTHS = [60, 31, 30, 22, 9, 9, 5, 2]


def iteration(strategy: str, slow: float, lengths: Sequence[int] = LENGTHS) -> tuple[Plan, list[list[Span]]]:
    """Plan under one strategy, and run it so many times as long as planned, what is empty in no time."""
    cluster = Cluster(gpus=2, gpus_per_node=2)
    plan = Planner(PROFILE, cluster, strategies=[strategy], memory="in_flight").plan(lengths)
    durations = []
    for replica in plan.replicas:
        times = [
            slow * PROFILE.micro_batch_ms(replica.scheme, [lengths[sequence] for sequence in sequences])
            if sequences
            else 0.0
            for sequences in replica.micro_batches
        ]
        durations.append([instruction_times(plan, ranks[0], times) for ranks in replica.stages])
    return plan, plan.measured_timeline(durations)


def instruction_times(plan: Plan, rank: int, times: list[float]) -> list[float]:
    """Give what each computation of a rank takes: forward a third of its micro-batch's time."""
    durations = []
    for instruction in plan.instructions(rank):
        match instruction:
            case Forward(micro_batch):
                durations.append(times[micro_batch] / 3)
            case Backward(micro_batch):
                durations.append(times[micro_batch] * 2 / 3)
    return durations


def test_the_moving_average_approaches_the_measurement() -> None:
    learnt = Recalibration(PROFILE, 0.25)
    for number in range(1, 40):
        learnt.observe(*iteration("2x<1>", 1.3))
        assert learnt.factors["<1>"] == pytest.approx(1.3 ** (1 - 0.75**number), rel=1e-9)
    assert learnt.factors["<1>"] == pytest.approx(1.3, rel=1e-4)


def test_times_are_compared_with_those_of_the_replicas_device() -> None:
    slow = with_scaled_times(PROFILE, lambda scheme: 3.0 if scheme == "<1>" else 4.0)
    profile = PROFILE.with_other_devices([(0.25, slow)])
    learnt = Recalibration(profile, 0.5)
    for devices in ([0, 1], [1, 1], [1, 0]):
        # Rank 1 computes at half the rate of its device, which plans know.
        usual = cluster_of_devices(profile, devices, 2)
        assert usual.rates is not None
        rates = [usual.rates[0], usual.rates[1] / 2]
        cluster = Cluster(2, 2, rates=rates, memory_bytes=usual.memory_bytes, devices=devices)
        planner = Planner(profile, cluster, strategies=["2x<1>"])
        plan = planner.plan(LENGTHS)
        learnt.observe(plan, planner.timeline(plan))
        assert learnt.factors == {"<1>": pytest.approx(1.0, rel=1e-9)}
    corrected = learnt.profile({"<1>": 2.0})
    ((rate, other),) = corrected.other_devices
    assert rate == 0.25
    assert other.micro_batch_ms(Scheme("<1>"), [9]) == pytest.approx(
        2 * slow.micro_batch_ms(Scheme("<1>"), [9])
    )


def test_replicas_on_two_devices_change_no_factor() -> None:
    profile = PROFILE.with_other_devices([(0.5, with_scaled_times(PROFILE, lambda _: 3.0))])
    learnt = Recalibration(profile, 0.5)
    for devices, is_learnt in (([0, 1], False), ([1, 1], True)):
        planner = Planner(profile, cluster_of_devices(profile, devices, 2), strategies=["1x<pp2>"])
        plan = planner.plan(LENGTHS)
        learnt.observe(plan, planner.timeline(plan))
        assert bool(learnt.factors) is is_learnt


def test_stages_are_compared_with_their_mean() -> None:
    learnt = Recalibration(PROFILE, 0.5)
    learnt.observe(*iteration("1x<pp2>", 1.21))
    assert learnt.factors == {"<pp2>": pytest.approx(1.1, rel=1e-9)}


def test_an_empty_micro_batch_changes_no_factor() -> None:
    plan, timelines = iteration("1x<pp2>", 1.21, [120, 110, 100])
    assert [len(sequences) for sequences in plan.replicas[0].micro_batches] == [1, 0, 1, 0, 1]
    learnt = Recalibration(PROFILE, 0.5)
    learnt.observe(plan, timelines)
    assert learnt.factors == {"<pp2>": pytest.approx(1.1, rel=1e-9)}


def test_schemes_that_have_not_run_get_the_factor_of_those_that_have() -> None:
    learnt = Recalibration(PROFILE, 0.999)
    learnt.observe(*iteration("2x<1>", 1.5))
    corrected = learnt.profile()
    for text in PROFILE.schemes:
        ratio = corrected.micro_batch_ms(Scheme(text), [17, 4]) / PROFILE.micro_batch_ms(
            Scheme(text), [17, 4]
        )
        assert ratio == pytest.approx(1.5, rel=1e-3)
    # Its own measurement then moves it away from there.
    learnt.observe(*iteration("1x<tp2>", 1.0))
    assert learnt.factors["<tp2>"] == pytest.approx(1.0, rel=1e-3)
    assert learnt.factors["<1>"] == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize(("slow", "most"), [(50.0, BOUND), (0.01, 1 / BOUND)])
def test_factors_are_bounded(slow: float, most: float) -> None:
    learnt = Recalibration(PROFILE, 0.5)
    for _ in range(20):
        learnt.observe(*iteration("2x<1>", slow))
    assert learnt.factors["<1>"] == most


def test_a_recalibrated_profile_changes_only_times() -> None:
    learnt = Recalibration(PROFILE, 0.5)
    assert learnt.profile() == PROFILE
    learnt.observe(*iteration("2x<1>", 1.2))
    before, after = (json.loads(profile.to_json()) for profile in (PROFILE, learnt.profile()))
    for document in (before, after):
        for entry in document["schemes"]:
            for name in ("quadratic_ms_per_token2", "linear_ms_per_token", "fixed_ms"):
                del entry[name]
    assert before == after
    assert isinstance(learnt.profile(), CostProfile)
