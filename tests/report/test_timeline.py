"""The figure of an iteration: a lane for each stage, a bar for each computation."""

from pathlib import Path

import pytest

from hydraulis import Cluster, Plan, Planner
from hydraulis.report.timeline import timeline_figure
from profiles import made_up_profile

PLANNER = Planner(
    made_up_profile({"<1>": 60, "<tp2,pp2>": 150}),
    Cluster(gpus=8, gpus_per_node=8),
    strategies=["1x<tp2,pp2>+4x<1>"],
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return PLANNER.plan([148, 90, 60, 30, 20, 20, 9, 9, 7])


@pytest.fixture(scope="module")
def svg(plan: Plan) -> str:
    timelines = {
        "planned": PLANNER.timeline(plan),
        "slow": PLANNER.simulate(plan, slowdowns={1: 2.0}).timelines,
    }
    return timeline_figure(plan, timelines, "a <title>").render("svg").decode()


def test_every_computation_is_a_bar_with_a_tip(plan: Plan, svg: str) -> None:
    computations = sum(2 * len(replica.stages) * len(replica.micro_batches) for replica in plan.replicas)
    assert computations > 10
    assert (
        svg.count("<title>forward of micro-batch ")
        == svg.count("<title>backward of micro-batch ")
        == computations
    )
    lanes = sum(len(replica.stages) for replica in plan.replicas)
    assert svg.count("<title>waiting</title>") == 2 * lanes
    first = plan.replicas[0].micro_batches[0]
    tokens = int(plan.lengths[first].sum())
    assert f"forward of micro-batch 0: {tokens:,} tokens in {len(first)} sequences" in svg


def test_the_timeline_loads_no_other_resource(svg: str) -> None:
    assert "<script" not in svg
    # Names of formats and licences are addresses too; none of them is loaded.
    assert 'href="http' not in svg
    assert "url(http" not in svg


def test_equal_figures_have_equal_bytes(plan: Plan, svg: str, tmp_path: Path) -> None:
    timelines = {
        "planned": PLANNER.timeline(plan),
        "slow": PLANNER.simulate(plan, slowdowns={1: 2.0}).timelines,
    }
    path = tmp_path / "again.svg"
    timeline_figure(plan, timelines, "a <title>").save(path)
    assert path.read_text(encoding="utf-8") == svg


def test_a_replica_without_work_has_a_lane() -> None:
    plan = PLANNER.plan([9])
    drawing = timeline_figure(plan, {"planned": PLANNER.timeline(plan)}, "one sequence")
    labels = [label.get_text() for label in drawing.panels[0].get_yticklabels()]
    assert labels == [
        "<tp2,pp2> stage 0, ranks 0–1",
        "<tp2,pp2> stage 1, ranks 2–3",
        *(f"<1>, rank {r}" for r in range(4, 8)),
    ]
    assert drawing.panels[0].get_title(loc="left") == f"planned: {plan.iteration_ms:,.0f} ms"
