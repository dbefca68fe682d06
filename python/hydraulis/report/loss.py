"""Figure of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hydraulis.report import style
from hydraulis.report.style import Drawing
from hydraulis.text.values import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from hydraulis.runtime.records.evaluation import Evaluation
    from hydraulis.runtime.records.metrics import StepMetrics


def loss_figure(metrics: Sequence[StepMetrics], evaluations: Sequence[Evaluation] = ()) -> Drawing:
    """Draw the loss of each step over the trained tokens, and its moving mean over a twentieth of the steps.

    Args:
        metrics: Metrics of each step, at least one.
        evaluations: Evaluations on held-out data, drawn at the tokens of the last step of `metrics` up to
            theirs.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    tokens = np.cumsum([one.tokens for one in metrics])
    unit, unit_name = (1_000_000, "millions of tokens") if tokens[-1] >= 10_000_000 else (1, "tokens")
    tokens = tokens / unit
    losses = np.array([one.loss for one in metrics])
    with Drawing(8.0, 2.8) as drawing:
        (panel,) = drawing.panels
        panel.plot(tokens, losses, color=style.PLANNED, alpha=0.35, linewidth=1)
        panel.plot(tokens, losses, linestyle="", marker=".", markersize=3, color=style.PLANNED, alpha=0.6)
        panel.plot(
            tokens,
            moving_mean(losses, len(losses) // 20),
            color=style.PLANNED,
            linewidth=2,
            label="training loss, each step and the moving mean",
        )
        panel.annotate(
            f"{losses[-1]:.3f}",
            (tokens[-1], losses[-1]),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        if evaluations:
            steps_before = np.searchsorted(
                [one.step for one in metrics], [one.step for one in evaluations], side="right"
            )
            _held_out(drawing, panel, evaluations, np.append(0, tokens)[steps_before])
        steps = format_count(len(losses), "step")
        panel.set_title(f"Loss of {steps}: {losses[0]:.3f} to {losses[-1]:.3f} nats a token")
        panel.set_xlabel(f"{unit_name} trained")
        panel.set_ylabel("nats a token")
        panel.margins(x=0.04)
        style.legend(panel, 2)
        style.thousands(panel, "x")
    return drawing


def _held_out(
    drawing: Drawing, panel: Axes, evaluations: Sequence[Evaluation], places: npt.NDArray[np.float64]
) -> None:
    """Draw the held-out losses over the trained tokens; those on earlier data are dotted lines."""
    for data in dict.fromkeys(one.data for one in evaluations):
        is_newest = data == evaluations[-1].data
        name = "held-out loss" if is_newest else "held-out loss on earlier data"
        found = [(place, one) for place, one in zip(places, evaluations, strict=True) if one.data == data]
        panel.plot(
            [place for place, _ in found],
            [one.loss for _, one in found],
            color=style.MEASURED,
            linestyle="-" if is_newest else ":",
            # A third entry would not fit into the legend's row.
            label=name if is_newest else f"_{name}",
        )
        for place, one in found:
            (dot,) = panel.plot(place, one.loss, marker="o", markersize=4, color=style.MEASURED)
            drawing.tip(dot, f"after step {one.step}: {one.loss:.3f} nats, {name}")


def moving_mean(values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """Return the centred moving mean of the values, over fewer of them near both ends.

    Args:
        values: Values, float64 [n].
        width: Number of values in a mean; below 2 the values are returned unchanged.
    """
    sums = np.concatenate(([0.0], np.cumsum(values)))
    places = np.arange(len(values))
    half = np.minimum(width // 2, np.minimum(places, places[::-1]))
    means: npt.NDArray[np.float64] = (sums[places + half + 1] - sums[places - half]) / (2 * half + 1)
    return means
