"""The planner of the soak: another strategy in each step, by the run's own planner."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benches.loading import load_script
from hydraulis import Cluster
from hydraulis.config.planner import PlannerConfig
from hydraulis.runtime import loop
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.step import train_step
from profiles import made_up_profile


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # The script replaces both for the rest of its process.
    monkeypatch.setattr(loop, "train_step", train_step)
    monkeypatch.setattr(RunPlanner, "plan", RunPlanner.plan)
    return load_script("soak")


def test_each_step_has_the_next_strategy_with_its_own_timeline(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    strategies = ("4x<1>", "2x<tp2>", "1x<tp4>")
    planned: list[Any] = []

    def be_a_rank(*_arguments: Any) -> None:
        config = PlannerConfig(strategies=strategies, memory_mib=1)
        profile = made_up_profile({"<1>": 64, "<tp2>": 128, "<tp4>": 256})
        planner = RunPlanner(config, profile, Cluster(gpus=4, gpus_per_node=4))
        for _ in range(4):
            plan = planner.plan(np.array([60, 31, 9]))
            planned.append((plan.strategy, len(planner.timeline(plan)), len(planner.rank_memory(plan))))

    monkeypatch.setattr(bench, "be_a_rank", be_a_rank)
    bench.be_a_sampled_rank(tmp_path / "samples", [], {})
    assert planned == [("4x<1>", 4, 4), ("2x<tp2>", 2, 4), ("1x<tp4>", 1, 4), ("4x<1>", 4, 4)]
