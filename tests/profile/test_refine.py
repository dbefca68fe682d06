"""Refining a profile with a run's recorded times corrects its predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, InvalidInputError, Planner, Scheme
from hydraulis.profile.refine import refine
from profiles import made_up_profile

CAPS = {"<1>": 4096, "<pp2>": 4096, "<tp2>": 8192}
CLUSTER = Cluster(gpus=2, gpus_per_node=2)
# The run is slower than the profile predicts, and its stages are uneven.
FACTOR = 1.5
STAGES = {"<1>": [1.0], "<pp2>": [0.8, 1.2]}


@pytest.fixture(params=[[1.0, 1.0], [1.0, 0.25]])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Record 40 iterations of two strategies, also on a rank that is known to be slow; <tp2> does not run."""
    rates: list[float] = request.param
    cluster = Cluster(gpus=2, gpus_per_node=2, rates=rates)
    profile = made_up_profile(CAPS)
    (tmp_path / "profile.json").write_text(profile.to_json())
    rng = np.random.default_rng(0)
    num_empty = 0
    with (
        (tmp_path / "metrics.jsonl").open("w") as metrics,
        (tmp_path / "plans.jsonl").open("w") as plans,
        (tmp_path / "times.jsonl").open("w") as times,
    ):
        for step in range(40):
            lengths = rng.lognormal(5.5, 1.2, 12).clip(2, 4000).astype(int).tolist()
            # Two sequences that do not fit memory together, with an empty micro-batch between them, which
            # takes no time.
            lengths += [8000, 7000] if step % 4 == 1 else []
            strategy = ("2x<1>", "1x<pp2>")[step % 2]
            plan = Planner(profile, cluster, strategies=[strategy], memory="in_flight").plan(lengths)
            num_empty += sum(not ids for replica in plan.replicas for ids in replica.micro_batches)
            metrics.write(json.dumps({"step": step + 1, "strategy": str(plan.strategy)}) + "\n")
            plans.write(plan.to_json() + "\n")
            measured = [
                [
                    [
                        FACTOR
                        * factor
                        * profile.micro_batch_ms(
                            replica.scheme, [lengths[sequence] for sequence in sequences]
                        )
                        * bool(sequences)
                        / rates[rank]
                        for factor, (rank,) in zip(STAGES[str(replica.scheme)], replica.stages, strict=True)
                    ]
                    for sequences in replica.micro_batches
                ]
                for replica in plan.replicas
            ]
            times.write(json.dumps(measured) + "\n")
    assert num_empty > 0
    return tmp_path


def test_coefficients_become_those_of_the_run(run: Path) -> None:
    refined = refine(run)
    before = CostProfile.from_json((run / "profile.json").read_text())
    for text in STAGES:
        ratio = refined.profile.micro_batch_ms(Scheme(text), [900, 40]) / before.micro_batch_ms(
            Scheme(text), [900, 40]
        )
        assert ratio == pytest.approx(FACTOR, rel=0.02)
    entries = {entry["scheme"]: entry for entry in json.loads(refined.profile.to_json())["schemes"]}
    assert entries["<pp2>"]["stage_multipliers"] == pytest.approx(STAGES["<pp2>"])
    assert entries["<1>"]["fit"]["points"] >= 40
    # What memory there is does not depend on times.
    assert refined.profile.cap_tokens(Scheme("<1>"), CLUSTER) == before.cap_tokens(Scheme("<1>"), CLUSTER)


def test_each_device_of_a_profile_is_refined_by_its_own_ranks(run: Path) -> None:
    """The run is slower than the profile's first device by FACTOR, and rank 1 is of another device."""
    plans = [json.loads(line) for line in (run / "plans.jsonl").read_text().splitlines()]
    rate = plans[0]["cluster"].get("rates", [1.0, 1.0])[1]
    profile = made_up_profile(CAPS)
    other = made_up_profile(CAPS, device="slow", slowdown=3.0)
    # Rank 1 computes at its usual rate: that of a device that takes three times as long.
    for plan in plans:
        plan["cluster"] |= {"devices": [0, 1], "rates": [1.0, rate]}
    (run / "plans.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in plans))
    (run / "profile.json").write_text(profile.with_other_devices([(rate, other)]).to_json())
    refined = refine(run)
    # The pipelines are on both devices, and no times of either.
    assert [entry.scheme for entry in refined.schemes] == ["<1> on none", "<1> on slow"]
    ((_, slow),) = refined.profile.other_devices
    of_first, of_slow = (one.micro_batch_ms(Scheme("<1>"), [900, 40]) for one in (refined.profile, slow))
    usual = profile.micro_batch_ms(Scheme("<1>"), [900, 40])
    assert of_first == pytest.approx(FACTOR * usual, rel=0.02)
    assert of_slow == pytest.approx(FACTOR * usual / rate, rel=0.02)
    unchanged = [f"{scheme} on {device}" for device in ("none", "slow") for scheme in ("<pp2>", "<tp2>")]
    assert refined.unchanged == unchanged


def replace_profile(run: Path, last: int) -> tuple[list[dict[str, Any]], CostProfile, CostProfile]:
    """Let a profile that numbers the devices the other way round replace a run's profile after a step.

    Returns:
        The plans, the profile of rank 0's device, and the earlier profile of both devices.
    """
    plans = [json.loads(line) for line in (run / "plans.jsonl").read_text().splitlines()]
    rate = plans[0]["cluster"].get("rates", [1.0, 1.0])[1]
    profile, other = made_up_profile(CAPS), made_up_profile(CAPS, device="slow", slowdown=1 / rate)
    for step, plan in enumerate(plans, 1):
        is_early = step <= last
        plan["cluster"]["devices"] = [0, 1] if is_early else [1, 0]
        plan["cluster"]["rates"] = [1.0, rate] if is_early else [1.0 / rate, 1.0]
    (run / "plans.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in plans))
    early = profile.with_other_devices([(rate, other)])
    (run / f"profile-{last:08}.json").write_text(early.to_json())
    late = other.with_other_devices([(1.0 / rate, profile)])
    (run / "profile.json").write_text(late.to_json())
    return plans, profile, early


def test_steps_after_lost_records_are_those_of_the_metrics(run: Path) -> None:
    """A run resumed at step 6 after a disk had lost its records: the first line of each file is step 7."""
    replace_profile(run, 20)
    names = ("metrics.jsonl", "plans.jsonl", "times.jsonl")
    kept = {name: (run / name).read_text().splitlines(keepends=True)[6:] for name in names}
    (run / "times.jsonl").write_text("".join(["null\n"] * 6 + kept["times.jsonl"]))
    expected = refine(run)
    assert [entry.scheme for entry in expected.schemes] == ["<1> on none", "<1> on slow"]
    for name in names:
        (run / name).write_text("".join(kept[name]))
    refined = refine(run)
    assert refined.schemes == expected.schemes
    assert refined.profile.to_json() == expected.profile.to_json()


def test_metrics_without_a_step_are_refused(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([lines[0], "{}\n", *lines[2:]]))
    with refused("run_unreadable", "metrics.jsonl", "line 2"):
        refine(run)


def test_devices_of_a_replaced_profile_are_known_by_their_names(run: Path) -> None:
    plans, profile, early = replace_profile(run, 30)
    rate = plans[0]["cluster"]["rates"][1]
    refined = refine(run)
    assert [entry.scheme for entry in refined.schemes] == ["<1> on none", "<1> on slow"]
    assert all(entry.error_before == pytest.approx(1 - 1 / FACTOR, rel=0.1) for entry in refined.schemes)
    # Names of a device may differ in length.
    sheet = json.loads(early.to_json())
    sheet["other_devices"][0]["profile"]["hardware"]["device"] = "very slow"
    (run / "profile-00000030.json").write_text(json.dumps(sheet))
    counts = {entry.scheme: entry.micro_batches for entry in refined.schemes}
    assert {entry.scheme: entry.micro_batches for entry in refine(run).schemes} == counts
    # A device that the profile no longer has is left out.
    (run / "profile.json").write_text(profile.to_json())
    for plan in plans[30:]:
        plan["cluster"] |= {"devices": [0, 0], "rates": [1.0, rate]}
    (run / "plans.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in plans))
    alone = refine(run)
    assert alone.schemes[0].scheme == "<1>"


def test_micro_batches_of_schemes_outside_the_profile_are_ignored(run: Path) -> None:
    (run / "profile.json").write_text(made_up_profile({"<1>": 4096}).to_json())
    refined = refine(run)
    assert [entry.scheme for entry in refined.schemes] == ["<1>"]


def test_the_changes_are_described(run: Path) -> None:
    refined = refine(run)
    assert [entry.scheme for entry in refined.schemes] == ["<1>", "<pp2>"]
    for entry in refined.schemes:
        assert entry.error_before == pytest.approx(1 - 1 / FACTOR)
        assert entry.error_after < 0.02
    assert refined.unchanged == ["<tp2>"]
    text = refined.explain()
    assert "33.3%" in text
    assert "<tp2>" in text


def test_progress_is_reported(run: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    refine(run, lambda *report: reported.append(report))
    steps = len((run / "times.jsonl").read_text().splitlines())
    read = [("reading steps", step, steps) for step in range(steps)]
    assert reported == [*read, ("fitting <1>, <pp2>", 0, 0)]


def test_a_run_that_ended_during_a_write_is_refined(run: Path) -> None:
    times = (run / "times.jsonl").read_text().splitlines()
    (run / "times.jsonl").write_text("\n".join(times[:-1]) + "\n")
    assert refine(run).schemes


def test_steps_with_counted_memory_are_ignored(run: Path) -> None:
    before = sum(entry.micro_batches for entry in refine(run).schemes)
    times = (run / "times.jsonl").read_text().splitlines()
    (run / "times.jsonl").write_text("\n".join(["null", *times[1:]]) + "\n")
    left_out = sum(len(replica) for replica in json.loads(times[0]))
    assert sum(entry.micro_batches for entry in refine(run).schemes) == before - left_out


def test_steps_without_a_plan_and_incomplete_lines_are_ignored(run: Path) -> None:
    before = sum(entry.micro_batches for entry in refine(run).schemes)
    plans = (run / "plans.jsonl").read_text().splitlines()
    (run / "plans.jsonl").write_text("\n".join(["null", *plans[1:]]) + '\n{"form')
    with (run / "times.jsonl").open("a") as times:
        times.write("[[[1.")
    left_out = sum(map(len, json.loads((run / "times.jsonl").read_text().splitlines()[0])))
    assert sum(entry.micro_batches for entry in refine(run).schemes) == before - left_out


NESTED = "[" * 100_000


@pytest.mark.parametrize("line", ["[]", "nonsense", "[[[1.0]], 3]", '[[["1.0"]]]', "[[[NaN]]]", NESTED])
def test_times_that_do_not_match_their_plan_are_refused(run: Path, line: str) -> None:
    times = (run / "times.jsonl").read_text().splitlines()
    (run / "times.jsonl").write_text("\n".join([times[0], line, *times[2:]]) + "\n")
    with refused("run_unreadable", "line 2"):
        refine(run)


def test_a_short_or_missing_run_is_refused(run: Path) -> None:
    (run / "times.jsonl").write_text((run / "times.jsonl").read_text().splitlines()[0] + "\n")
    with pytest.raises(InvalidInputError) as caught:
        refine(run)
    assert caught.value.code == "fit_underdetermined"
    (run / "times.jsonl").write_text("")
    with refused("fit_underdetermined", "no step with a plan and times"):
        refine(run)
    with pytest.raises(InvalidInputError) as caught:
        refine(run / "missing")
    assert caught.value.code == "run_unreadable"
    (run / "plans.jsonl").unlink()
    with pytest.raises(InvalidInputError) as caught:
        refine(run)
    assert caught.value.code == "file_unreadable"
