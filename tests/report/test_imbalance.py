"""The static comparison of a run, and the steps that it leaves out."""

import json
from pathlib import Path
from typing import Any

import pytest

from hydraulis import Cluster, CostProfile, Link, LinkRates, Plan, Planner
from hydraulis.planner.profile import load_profile
from hydraulis.planner.profile_document import with_scaled_times
from hydraulis.report.imbalance import balances, comparable
from hydraulis.report.page import numbers, page
from hydraulis.report.run import Run, read_run
from report.made_up_run import CLUSTER, PROFILE, STRATEGIES, made_up_config, write_run


def rewrite_plans(path: Path, plans: list[Plan]) -> None:
    (path / "plans.jsonl").write_text("".join(f"{plan.to_json()}\n" for plan in plans))


def configuration(**planner: Any) -> str:
    config = made_up_config(STRATEGIES)
    return json.dumps(config | {"planner": {"strategies": STRATEGIES} | planner})


def profile_with_a_model() -> CostProfile:
    """Return the made-up profile with the shape of a model, which links need."""
    shape = json.loads(load_profile("llama-7b-a800").to_json())
    of_shape = {name: shape[name] for name in ("model", "dtype")}
    return CostProfile.from_json(json.dumps(json.loads(PROFILE.to_json()) | of_shape))


def test_steps_under_an_earlier_profile_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plans = write_run(path)
    slower = with_scaled_times(PROFILE, lambda _scheme: 2.0)
    planner = Planner(slower, CLUSTER, strategies=STRATEGIES)
    rewrite_plans(path, [*plans[:2], *(planner.plan(plan.lengths) for plan in plans[2:])])
    for step in (1, 2):
        (path / "profile.json").rename(path / f"profile-{step:08}.json")
        (path / "profile.json").write_text(slower.to_json())
    run = read_run(path)
    assert run.changed_after == 2
    assert balances(run)[-1].steps == [3, 4, 5, 6]
    assert balances(run)[-1].other_steps == [1, 2]
    summed = numbers(run, balances(run))
    assert summed["left_out"] == 2
    static = Planner(slower, CLUSTER, strategies=["2x<tp2>"])
    kept = sum(static.plan(plan.lengths).iteration_ms for plan in run.plans[2:])
    assert summed["static_ratio"] == pytest.approx(kept / sum(plan.iteration_ms for plan in run.plans[2:]))
    assert " × as long, of the last 4 steps<" in page(run, [], summed)
    # Resumed, and without a step so far.
    (path / "profile-00000006.json").write_text(PROFILE.to_json())
    assert balances(read_run(path)) == []


def test_steps_with_another_link_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path)
    (path / "config.json").write_text(configuration(link="25"))
    (path / "config-00000001.json").write_text(configuration())
    (path / "config-00000002.json").write_text(configuration(link="12"))
    (path / "config-00000004.json").write_text(configuration(link="25", lookahead=3))
    run = read_run(path)
    assert (run.changed_after, comparable(run), run.notes) == (2, [2, 3, 4, 5], [])
    (path / "config-00000005.json").write_text("{")
    run = read_run(path)
    assert run.changed_after == 2
    (note,) = run.notes
    assert note.startswith("config-00000005.json is left out: ")


@pytest.mark.parametrize("kind", ["memory", "transfers"])
def test_steps_with_another_memory_rule_or_without_transfers_are_not_compared(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "run"
    plans = write_run(path)
    profile = profile_with_a_model()
    (path / "profile.json").write_text(profile.to_json())
    (path / "config.json").write_text(configuration(link="25"))
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=25))
    planner = (
        Planner(profile, CLUSTER, strategies=STRATEGIES, memory="in_flight")
        if kind == "memory"
        else Planner(profile, CLUSTER, strategies=STRATEGIES, link=link)
    )
    rewrite_plans(path, [*plans[:4], *(planner.plan(plan.lengths) for plan in plans[4:])])
    assert comparable(read_run(path)) == [4, 5]


def test_steps_with_slow_links_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plans = write_run(path)
    profile, two_nodes = profile_with_a_model(), Cluster(gpus=4, gpus_per_node=2)
    (path / "profile.json").write_text(profile.to_json())
    config = made_up_config(["2x<tp2>"])
    config["planner"] = {"strategies": ["2x<tp2>"], "link": "1"}
    (path / "config.json").write_text(json.dumps(config))
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=1))
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]

    def run_with(slow: set[int]) -> Run:
        found = []
        for one, plan in zip(metrics, plans, strict=True):
            one["link_slowdowns"] = [4.0, 1.0] if one["step"] in slow else []
            of_step = link.with_node_slowdowns(one["link_slowdowns"])
            planner = Planner(profile, two_nodes, strategies=["2x<tp2>"], link=of_step)
            found.append(planner.plan(plan.lengths))
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in metrics))
        rewrite_plans(path, found)
        return read_run(path)

    run = run_with({3, 4, 6})
    assert run.plans[2].step_ms > 1.5 * run_with(set()).plans[2].step_ms
    static, planned = balances(run)
    assert static.steps == planned.steps == [1, 2, 5]
    assert planned.other_steps == [3, 4, 6]
    assert static.mean_step_ms == planned.mean_step_ms
    (only,) = balances(run_with({1, 2, 3, 4, 5, 6}))
    assert only.steps == [1, 2, 3, 4, 5, 6]
