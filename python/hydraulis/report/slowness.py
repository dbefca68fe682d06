"""Figure of slow ranks and of slow links between nodes, as the plans count with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydraulis.report import style
from hydraulis.report.style import Drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from hydraulis.runtime.records.metrics import StepMetrics

MOST = 6
"""Ranks or nodes with a line and a name of their own, the slowest ones."""

# Title, what a line stands for, and the slowdowns of a step, empty if none is slow.
_PANELS: tuple[tuple[str, str, Callable[[StepMetrics], Sequence[float]]], ...] = (
    ("Slow ranks", "rank", lambda one: [1 / rate for rate in one.rank_rates]),
    ("Slow links between nodes", "node", lambda one: one.link_slowdowns),
)


def has_slow(metrics: Sequence[StepMetrics]) -> bool:
    """Return whether the plan of any step counts with a slow rank or slow links."""
    return any(_slow(metrics, slowdowns) for _, _, slowdowns in _PANELS)


def slowness_figure(metrics: Sequence[StepMetrics]) -> Drawing:
    """Draw the slowdown of each slow rank, and of the links of each node with slow ones, over the steps.

    Args:
        metrics: Metrics of each step, with a slow rank or slow links in one of them.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    drawn = [panel for panel in _PANELS if _slow(metrics, panel[2])]
    with Drawing(8.0, 0.4 + 2.0 * len(drawn), rows=[1] * len(drawn)) as drawing:
        for panel, (title, kind, slowdowns) in zip(drawing.panels, drawn, strict=True):
            _draw(panel, metrics, kind, slowdowns)
            panel.set_title(title)
            panel.set_ylabel("times the usual" if kind == "node" else "times the others")
            style.steps(panel)
            panel.set_xlim(metrics[0].step - 0.5, metrics[-1].step + 0.5)
        drawing.panels[-1].set_xlabel("step")
    return drawing


def _draw(
    panel: Axes,
    metrics: Sequence[StepMetrics],
    kind: str,
    slowdowns: Callable[[StepMetrics], Sequence[float]],
) -> None:
    slow = _slow(metrics, slowdowns)
    for number, place in enumerate(slow[:MOST]):
        # A run that was resumed on fewer ranks has fewer values.
        values = [of_step[place] if place < len(of_step := slowdowns(one)) else 1.0 for one in metrics]
        steps = [one.step for one in metrics]
        colour = style.CATEGORIES[number % len(style.CATEGORIES)]
        panel.plot(steps, values, color=colour, drawstyle="steps-mid", label=f"{kind} {place}")
    panel.set_ylim(1, 1.08 * max(max(slowdowns(one), default=1.0) for one in metrics))
    style.legend(panel, MOST)
    if len(slow) > MOST:
        panel.text(1, 1, f"and {len(slow) - MOST} more", transform=panel.transAxes, ha="right", va="bottom")


def _slow(
    metrics: Sequence[StepMetrics], slowdowns: Callable[[StepMetrics], Sequence[float]]
) -> Sequence[int]:
    """Return the ranks or nodes that are slow in any step, those of the greatest slowdown first."""
    most: dict[int, float] = {}
    for one in metrics:
        for place, slowdown in enumerate(slowdowns(one)):
            if slowdown > 1:
                most[place] = max(most.get(place, 1.0), slowdown)
    return sorted(most, key=lambda place: (-most[place], place))
