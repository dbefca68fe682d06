"""Figure of predicted and measured iteration times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hydraulis.report import style
from hydraulis.report.style import Drawing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hydraulis.runtime.records.metrics import StepMetrics


def has_measured(metrics: Sequence[StepMetrics]) -> bool:
    """Whether the time of any step was measured."""
    return any(map(_is_measured, metrics))


def _is_measured(metrics: StepMetrics) -> bool:
    return metrics.prediction_error is not None


def prediction_figure(metrics: Sequence[StepMetrics]) -> Drawing:
    """Draw predicted and measured times over the measured steps, and against each other.

    Args:
        metrics: Metrics of each step, at least one of which `has_measured` a time.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    metrics = [one for one in metrics if _is_measured(one)]
    steps = [one.step for one in metrics]
    planned = np.array([one.planned_ms for one in metrics])
    measured = np.array([one.measured_ms for one in metrics])
    errors = 100 * (planned / measured - 1)
    with Drawing(8.0, 3.2, columns=(2.1, 1)) as drawing:
        over, against = drawing.panels
        over.plot(steps, planned, color=style.PLANNED, label="predicted")
        over.plot(steps, measured, color=style.MEASURED, linewidth=1, label="measured")
        over.fill_between(steps, planned, measured, color=style.MEASURED, alpha=0.12, linewidth=0)
        over.set_ylim(bottom=0)
        over.set_title(f"Median prediction error: {np.median(abs(errors)):.1f} %")
        over.set_xlabel("step")
        over.set_ylabel("iteration, ms")
        over.legend(loc="best", ncols=2)
        style.steps(over)
        high = 1.08 * max(planned.max(), measured.max())
        line = np.array([0, high])
        against.fill_between(line, 0.9 * line, 1.1 * line, color=style.GRID, linewidth=0)
        against.plot(line, line, color=style.FAINT, linewidth=0.8)
        _points(drawing, against, metrics)
        against.set_xlim(0, high)
        against.set_ylim(0, high)
        against.set_aspect("equal")
        against.set_xlabel("measured, ms")
        against.set_ylabel("predicted, ms")
        against.set_title("grey: error up to 10 %", fontsize=9, fontweight="normal")
        for panel in drawing.panels:
            style.thousands(panel)
        style.thousands(against, "x")
    return drawing


def _points(drawing: Drawing, panel: Axes, metrics: Sequence[StepMetrics]) -> None:
    """Draw a dot for each step, with a tip if there are few."""
    if len(metrics) > style.MOST_TIPS:
        measured, planned = np.array([(one.measured_ms, one.planned_ms) for one in metrics]).T
        panel.scatter(measured, planned, s=8, color=style.PLANNED, alpha=0.4, linewidths=0)
        return
    for one in metrics:
        (dot,) = panel.plot(one.measured_ms, one.planned_ms, marker="o", markersize=3.5, alpha=0.6)
        dot.set(color=style.PLANNED, markeredgewidth=0)
        times = f"{one.planned_ms:,.0f} ms predicted, {one.measured_ms:,.0f} measured"
        drawing.tip(dot, f"step {one.step}: {times}, {one.strategy}")
