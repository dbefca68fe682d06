"""Figure of replica balance: ends of replicas under one static strategy, and under a plan for each step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hydraulis._core import Link, Planner
from hydraulis.config.planner import SEARCH
from hydraulis.planner.links import resolve_links
from hydraulis.planner.static import StaticComparison
from hydraulis.planner.strategies import homogeneous_strategies, strategy_fits
from hydraulis.progress import ProgressCallback, ignore_progress
from hydraulis.report import style
from hydraulis.report.style import Drawing
from hydraulis.runtime.records.run_directory import CALIBRATIONS
from hydraulis.text.values import format_count, format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hydraulis._core import Cluster, Plan
    from hydraulis.config.kinds import MemoryRule
    from hydraulis.report.run import Run

MOST_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Predicted ends of all replicas in some steps of a run.

    Attributes:
        name: Name of the plans, such as the static strategy.
        steps: Numbers of the steps, counted from 1.
        replica_ms: End of each replica in ms, by step.
        idle: Share of all ranks' time without work, from 0 to 1, over these steps.
        mean_step_ms: Mean step in ms: the iteration, and transfers beyond it if plans count them.
        other_steps: Numbers of steps that `comparable` leaves out.
        other_ms: End of each replica in ms, by these steps.
    """

    name: str
    steps: list[int]
    replica_ms: list[list[float]]
    idle: float
    mean_step_ms: float
    other_steps: list[int] = field(default_factory=list)
    other_ms: list[list[float]] = field(default_factory=list)

    @property
    def mean_ms(self) -> float:
        """Mean iteration in ms."""
        return float(np.mean([max(ends) for ends in self.replica_ms]))


def balances(run: Run, progress: ProgressCallback = ignore_progress) -> list[Balance]:
    """Return the balance of the best static strategy's plans and of the run's own plans.

    At most `MOST_STEPS` evenly spaced steps are compared, all of them from `comparable`; the run's balance
    also has others. The static strategy is left out if no strategy of the run admits its longest sequence, if
    the run corrected its planned times, or if all these steps have slow links.

    Args:
        run: Run to examine.
        progress: Callback before each plan, with the activity and its progress.

    Returns:
        The static strategy's balance, if any, and the run's; empty without comparable steps.
    """
    places = comparable(run)
    if not places:
        return []
    chosen = sorted({places[round(place)] for place in np.linspace(0, len(places) - 1, MOST_STEPS)})
    steps = [run.planned_steps[place] for place in chosen]
    plans = [run.plans[place] for place in chosen]
    after = _with_others(_balance("A plan for each step", steps, plans, run), places, run)
    if (run.path / CALIBRATIONS).exists() or not _steps_with_slow_links(run).isdisjoint(steps):
        return [after]
    cluster, memory = plans[-1].cluster, plans[-1].memory
    candidates = (
        homogeneous_strategies(run.profile, cluster) if tuple(run.strategies) == SEARCH else run.strategies
    )
    link = _link(run, plans[-1])
    static = StaticComparison.for_strategies(
        run.profile, cluster, candidates, int(run.lengths.max()), link=link, memory=memory
    )
    for done, plan in enumerate(plans):
        progress("planning under each static strategy", done, len(plans))
        static.add(plan.lengths)
    best = static.best()
    if best is None:
        return [after]
    planner = Planner(run.profile, cluster, strategies=[best.strategy], link=link, memory=memory)
    kept = []
    for done, plan in enumerate(plans):
        progress(f"planning under {best.strategy}", done, len(plans))
        kept.append(planner.plan(plan.lengths, plan.targets))
    return [_balance(f"{best.strategy} for all steps", steps, kept, run), after]


def _link(run: Run, plan: Plan) -> Link | None:
    """Return the links that the plan counts with; None if it excludes them, or without a model."""
    if plan.transfer_ms is None or run.profile.model is None:
        return None
    links = resolve_links("planner.link", run.config["planner"]["link"], run.profile, plan.cluster)
    return None if links is None else links.of_profile(run.profile)


def comparable(run: Run) -> list[int]:
    """Return the indices of the plans with the run's last profile, cluster, links and memory rule.

    Earlier steps of a resumed run can have others, and schemes that the profile lacks. Static strategies are
    planned for usual links, so steps with slow links are left out, unless all of these steps have them.
    """
    if not run.plans:
        return []
    last = run.plans[-1]
    alike = {
        place: plan.strategy
        for place, (step, plan) in enumerate(zip(run.planned_steps, run.plans, strict=True))
        if step > run.changed_after and _planned_for(plan) == _planned_for(last)
    }
    known = {
        strategy for strategy in set(alike.values()) if strategy_fits(run.profile, last.cluster, strategy)
    }
    found = [place for place, strategy in alike.items() if strategy in known]
    slow = _steps_with_slow_links(run)
    return [place for place in found if run.planned_steps[place] not in slow] or found


def _steps_with_slow_links(run: Run) -> set[int]:
    return {one.step for one in run.metrics if one.link_slowdowns}


def _planned_for(plan: Plan) -> tuple[Cluster, MemoryRule, bool]:
    """Return the plan's cluster and memory rule, and whether it counts transfers."""
    return plan.cluster, plan.memory, plan.transfer_ms is not None


def _balance(name: str, steps: list[int], plans: Sequence[Plan], run: Run) -> Balance:
    compute = total = 0.0
    for plan in plans:
        # Simulated with the profile, also if the plan was made with corrected times.
        simulated = Planner(run.profile, plan.cluster, strategies=[plan.strategy]).simulate(plan)
        compute += simulated.gpu_time.compute_ms
        total += plan.cluster.gpus * simulated.iteration_ms
    ends = [[replica.predicted_ms for replica in plan.replicas] for plan in plans]
    mean_step_ms = float(np.mean([plan.step_ms for plan in plans]))
    return Balance(
        name=name, steps=steps, replica_ms=ends, idle=1 - compute / total, mean_step_ms=mean_step_ms
    )


def _with_others(balance: Balance, compared: Sequence[int], run: Run) -> Balance:
    """Add the steps of a run that are not compared, at most `MOST_STEPS` evenly spaced ones."""
    others = sorted(set(range(len(run.plans))) - set(compared))
    chosen = sorted(
        {others[round(place)] for place in np.linspace(0, len(others) - 1, MOST_STEPS)} if others else ()
    )
    return replace(
        balance,
        other_steps=[run.planned_steps[place] for place in chosen],
        other_ms=[[replica.predicted_ms for replica in run.plans[place].replicas] for place in chosen],
    )


def imbalance_figure(found: Sequence[Balance]) -> Drawing:
    """Draw the end of each replica as a dot, and a line from the first to the last end of each step.

    A run whose steps all ran like the static strategy has one panel.

    Args:
        found: Balances of the same steps, the run's last; at least one.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    if found[0].replica_ms == found[-1].replica_ms:
        found = found[-1:]
    colours = (style.STATIC, style.PLANNED)[-len(found) :]
    with Drawing(8.0, 0.6 + 2.0 * len(found), rows=[1] * len(found)) as drawing:
        high = 1.08 * max(max(ends) for one in found for ends in (*one.replica_ms, *one.other_ms))
        for panel, one, colour in zip(drawing.panels, found, colours, strict=True):
            _ends(drawing, panel, one, colour)
            panel.set_ylim(0, high)
            panel.set_ylabel("predicted end, ms")
            style.thousands(panel)
            style.steps(panel)
        drawing.panels[-1].set_xlabel("step (dots: ends of replicas; lines: from the first end to the last)")
        for panel in drawing.panels[:-1]:
            panel.tick_params(labelbottom=False)
    return drawing


def _ends(drawing: Drawing, panel: Axes, one: Balance, colour: str) -> None:
    panel.set_title(
        f"{one.name}: predicted mean {one.mean_ms:,.0f} ms, ranks idle {format_percent(one.idle)}"
    )
    coloured = [
        *((step, ends, style.MEASURED, colour) for step, ends in zip(one.steps, one.replica_ms, strict=True)),
        *(
            (step, ends, style.STATIC, style.STATIC)
            for step, ends in zip(one.other_steps, one.other_ms, strict=True)
        ),
    ]
    for step, ends, line, dots in coloured:
        (bar,) = panel.plot([step, step], [min(ends), max(ends)], color=line, linewidth=2.2, alpha=0.75)
        replicas = format_count(len(ends), "replica")
        drawing.tip(
            bar, f"step {step}: {replicas} predicted to end from {min(ends):,.0f} to {max(ends):,.0f} ms"
        )
        panel.plot([step] * len(ends), ends, linestyle="", marker="o", markersize=2.6, color=dots)
