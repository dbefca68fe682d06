"""Figure of each step's strategy, above the longest sequence of its batch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hydraulis.report import style
from hydraulis.report.style import Drawing
from hydraulis.text.values import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydraulis.runtime.records.metrics import StepMetrics

MOST = 12


def strategies_figure(metrics: Sequence[StepMetrics]) -> Drawing:
    """Draw the strategy of each step, the most frequent at the top, and the longest sequence of its batch.

    Args:
        metrics: Metrics of each step, at least one.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    counts = Counter(one.strategy for one in metrics)
    rows = [name for name, _ in counts.most_common(MOST)]
    names = [f"{name}, {format_count(counts[name], 'step')}" for name in rows]
    if len(counts) > MOST:
        names.append(f"others, {format_count(len(metrics) - sum(counts[name] for name in rows), 'step')}")
    with Drawing(8.0, 2.0 + 0.26 * len(names), rows=(0.26 * len(names) + 0.4, 1.2)) as drawing:
        chosen, longest = drawing.panels
        strategies = format_count(len(counts), "strategy", "strategies")
        chosen.set_title(f"{strategies} in {format_count(len(metrics), 'step')}")
        for one in metrics if len(metrics) <= style.MOST_TIPS else ():
            _step(drawing, one, _row(one, rows))
        if len(metrics) > style.MOST_TIPS:
            _all_steps(drawing, metrics, rows)
        chosen.set_yticks(range(len(names)), names)
        chosen.set_ylim(len(names) - 0.5, -0.5)
        chosen.grid(visible=False)
        chosen.tick_params(labelbottom=False)
        longest.set_title("The longest sequence of the batch", fontsize=9, fontweight="normal")
        longest.set_ylim(bottom=0)
        longest.set_ylabel("tokens")
        longest.set_xlabel("step")
        style.thousands(longest)
        for panel in drawing.panels:
            style.steps(panel)
            panel.set_xlim(metrics[0].step - 0.5, metrics[-1].step + 0.5)
    return drawing


def _row(one: StepMetrics, rows: Sequence[str]) -> int:
    return rows.index(one.strategy) if one.strategy in rows else len(rows)


def _colour(row: int) -> str:
    return style.CATEGORIES[row % len(style.CATEGORIES)]


def _step(drawing: Drawing, one: StepMetrics, row: int) -> None:
    chosen, longest = drawing.panels
    (bar,) = chosen.barh(row, 1, left=one.step - 0.5, height=0.8, color=_colour(row), linewidth=0)
    drawing.tip(bar, f"step {one.step}: {one.strategy}, the longest sequence {one.longest:,} tokens")
    (bar,) = longest.bar(one.step, one.longest, width=1, color=_colour(row), linewidth=0)
    drawing.tip(bar, f"step {one.step}: {one.longest:,} tokens")


def _all_steps(drawing: Drawing, metrics: Sequence[StepMetrics], rows: Sequence[str]) -> None:
    """Draw the steps of a row as one artist: each separate one takes a millisecond."""
    chosen, longest = drawing.panels
    for row in range(len(rows) + 1):
        steps = [one for one in metrics if _row(one, rows) == row]
        chosen.broken_barh([(one.step - 0.5, 1.0) for one in steps], (row - 0.4, 0.8), color=_colour(row))
        places = [one.step for one in steps]
        longest.vlines(places, 0, [one.longest for one in steps], color=_colour(row), linewidth=1)
