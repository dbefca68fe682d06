"""Figure that compares planners: the mean step by use of time, and every single step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hydraulis.planner.compare import PARTS, PlannerUnderTest
from hydraulis.report import style
from hydraulis.report.style import Drawing
from hydraulis.text.values import format_count, format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_NEEDED = "computing that the sequences need at least"
_NAMES = {
    "compute": "more computing, in wide replicas",
    "slower_rank": "waiting for a slower rank",
    "bubble": "pipeline bubble",
    "slower_replica": "waiting for the slowest replica",
    "unused": "ranks without a replica",
    "transfers": "exposed transfers",
}
_NEEDED_COLOUR = "#0072B2"
_COLOURS = {
    "compute": "#56B4E9",
    "slower_rank": "#CC79A7",
    "bubble": "#E69F00",
    "slower_replica": "#D55E00",
    "unused": "#BDBDBD",
    "transfers": "#009E73",
}


def comparison_figure(planners: Sequence[PlannerUnderTest], title: str) -> Drawing:
    """Draw the mean step of each planner by use of time, and below it every single step.

    Args:
        planners: Planners with their results for the same batches, at least one.
        title: Description of the comparison.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    rows = len(planners)
    with Drawing(8.0, 2.2 + 0.75 * rows, rows=(1, 1.15)) as drawing:
        parts, singles = drawing.panels
        _parts(parts, planners)
        _singles(singles, planners)
        longest = max(max(one.step_ms) for one in planners)
        for panel in drawing.panels:
            panel.set_xlim(0, 1.06 * longest)
            panel.grid(visible=True, axis="x")
            panel.grid(visible=False, axis="y")
            style.thousands(panel, "x")
        singles.set_xlabel("step, ms")
        drawing.head(title)
        return drawing


def _parts(panel: Axes, planners: Sequence[PlannerUnderTest]) -> None:
    panel.set_title("Use of a GPU's mean step, simulated")
    for row, one in enumerate(planners):
        left = 0.0
        for part in PARTS:
            width = one.parts_ms[part] / len(one.step_ms)
            panel.barh(row, width, left=left, height=0.62, color=_COLOURS[part])
            left += width
        panel.barh(row, one.needed_ms / len(one.step_ms), height=0.62, color=_NEEDED_COLOUR)
        text = f"{one.mean_ms:,.0f} ms, {format_percent(one.needed_share, 0)} needed"
        panel.annotate(text, (left, row), (5, 0), textcoords="offset points", va="center", fontsize=8)
    _rows(panel, planners)
    from matplotlib.patches import Patch

    present = [part for part in PARTS if any(one.parts_ms[part] > 0 for one in planners)]
    handles = [Patch(color=_NEEDED_COLOUR, label=_NEEDED)]
    handles += [Patch(color=_COLOURS[part], label=_NAMES[part]) for part in present]
    panel.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), ncols=3, handlelength=1)
    panel.tick_params(labelbottom=False)


def _singles(panel: Axes, planners: Sequence[PlannerUnderTest]) -> None:
    batches = len(planners[0].step_ms)
    panel.set_title(f"{format_count(batches, 'step')} (bar: median, triangle: 99th percentile)")
    for row, one in enumerate(planners):
        # Multiples of the golden ratio spread evenly and deterministically.
        spread = (np.arange(batches) * 0.618034) % 1 - 0.5
        panel.scatter(one.step_ms, row + 0.5 * spread, s=9, color=style.PLANNED, alpha=0.45, linewidths=0)
        panel.plot([one.percentile_ms(50)] * 2, [row - 0.34, row + 0.34], color=style.INK, linewidth=2)
        panel.plot(one.percentile_ms(99), row + 0.38, marker="v", color=style.MEASURED, markersize=5)
    _rows(panel, planners)


def _rows(panel: Axes, planners: Sequence[PlannerUnderTest]) -> None:
    labels = [one.name.replace(" ", "\n", 1) for one in planners]
    panel.set_yticks(range(len(planners)), labels)
    panel.set_ylim(len(planners) - 0.45, -0.55)
