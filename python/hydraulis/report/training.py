"""Figure of a run over its steps: learning rate, gradient norm, speed and exposed transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydraulis.report import style
from hydraulis.report.style import Drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hydraulis.runtime.records.metrics import StepMetrics

# Title, label of the y axis, and value of a step.
_PANELS: tuple[tuple[str, str, Callable[[StepMetrics], float]], ...] = (
    ("Learning rate", "rate", lambda one: one.learning_rate),
    ("Norm of the gradient, before clipping", "norm", lambda one: one.gradient_norm),
    ("Tokens a second of wall time", "tokens/s", lambda one: one.tokens_per_s),
    ("Exposed transfers, of wall time", "share, %", lambda one: 100 * one.transfer_ms / one.wall_ms),
)


def training_figure(metrics: Sequence[StepMetrics]) -> Drawing:
    """Draw learning rate, gradient norm, tokens per second and the share of exposed transfers of each step.

    Args:
        metrics: Metrics of each step, at least one.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    steps = [one.step for one in metrics]
    with Drawing(8.0, 1.5 * len(_PANELS), rows=[1] * len(_PANELS)) as drawing:
        for panel, (title, label, value) in zip(drawing.panels, _PANELS, strict=True):
            values = [value(one) for one in metrics]
            panel.plot(steps, values, color=style.PLANNED, marker=".", markersize=3, linewidth=1)
            panel.set_title(title)
            panel.set_ylabel(label)
            panel.set_ylim(0, 1.08 * max(values) or 1)
            style.steps(panel)
            style.thousands(panel)
        for panel in drawing.panels[:-1]:
            panel.tick_params(labelbottom=False)
        drawing.panels[-1].set_xlabel("step")
    return drawing
