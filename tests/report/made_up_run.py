"""A run's folder, made without training: two strategies, one of them a pipeline, and made-up measurements."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hydraulis import Cluster, Plan, Planner
from hydraulis.data.analysis import Analysis, compute_batch_imbalance, compute_length_statistics
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.trace import MEASURED, PLANNED, chrome_trace
from profiles import made_up_profile

PROFILE = made_up_profile({"<1>": 200, "<tp2>": 500, "<pp2>": 300})
CLUSTER = Cluster(gpus=4, gpus_per_node=4)
STRATEGIES = ["4x<1>", "2x<tp2>", "1x<pp2>+1x<tp2>"]
TRACED = 2


def made_up_config(strategies: Sequence[str], steps: int = 6) -> dict[str, object]:
    """Return the part of a configuration that a report reads."""
    return {"planner": {"strategies": list(strategies)}, "train": {"steps": steps}}


def write_run(path: Path, steps: int = 6) -> list[Plan]:
    """Write the folder as training does, and return the plans."""
    path.mkdir()
    # In turn, so that both strategies occur.
    planners = [Planner(PROFILE, CLUSTER, strategies=[one]) for one in ("4x<1>", "1x<pp2>+1x<tp2>")]
    rng = np.random.default_rng(0)
    plans = []
    for step in range(steps):
        lengths = rng.lognormal(3.6, 0.9, 24).astype(int).clip(2, 190)
        if step % 2:
            lengths[0] = 400 + step
        plans.append(planners[step % 2].plan(lengths))
    metrics = [_metrics(step, plan) for step, plan in enumerate(plans, start=1)]
    (path / "metrics.jsonl").write_text("".join(f"{one.to_json()}\n" for one in metrics))
    (path / "plans.jsonl").write_text("".join(f"{plan.to_json()}\n" for plan in plans))
    evaluations = [
        Evaluation(0, 6.5, "ab"),
        *(Evaluation(step, 6.2 - 0.4 * step, "ab") for step in range(2, steps + 1, 2)),
    ]
    (path / "evaluations.jsonl").write_text("".join(f"{one.to_json()}\n" for one in evaluations))
    lengths = np.concatenate([plan.lengths for plan in plans])
    analysis = Analysis(
        lengths=compute_length_statistics(lengths, lengths - 1),
        batches=compute_batch_imbalance([plan.lengths for plan in plans], CLUSTER.gpus),
    )
    (path / "analysis.json").write_text(json.dumps(analysis.to_dict()))
    (path / "profile.json").write_text(PROFILE.to_json())
    (path / "config.json").write_text(json.dumps(made_up_config(STRATEGIES, steps)))
    planner, traced = planners[(TRACED - 1) % 2], plans[TRACED - 1]
    slow = planner.simulate(traced, slowdowns={0: 1.25}).timelines
    trace = chrome_trace(traced, {PLANNED: planner.timeline(traced), MEASURED: slow}, TRACED)
    (path / "trace.json").write_text(trace)
    return plans


def _metrics(step: int, plan: Plan) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=6.5 - 0.5 * step,
        sequences=len(plan.lengths),
        tokens=int(plan.lengths.sum()),
        longest=int(plan.lengths.max()),
        squares=int((plan.lengths**2).sum()),
        strategy=plan.strategy,
        planned_ms=plan.iteration_ms,
        lower_bound_ms=plan.lower_bound_ms,
        measured_ms=plan.iteration_ms / (0.95 if step % 2 else 1.1),
        wall_ms=1000.0 * step,
        plan_ms=0.3,
        plan_wait_ms=0.1,
        transfer_ms=20.0,
        groups_ms=0.5,
        memory_bytes=1 << 30,
        rank_planned_bytes=(1 << 30,) * 4,
        rank_peak_bytes=(1 << 30, None, None, (1 << 30) * 5 // 4),
        gradient_norm=1.5,
        learning_rate=1e-3,
        tokens_per_s=float(plan.lengths.sum()) / step,
        mfu=0.29 + 0.01 * step,
        bubble=0.02,
        imbalance=1.1,
        replica_planned_ms=tuple(replica.predicted_ms for replica in plan.replicas),
        replica_measured_ms=tuple(1.1 * replica.predicted_ms for replica in plan.replicas),
        ranks_per_device=1,
        rank_rates=(),
        link_slowdowns=(),
        moved=0,
    )
