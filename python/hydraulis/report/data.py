"""Figure of a data set: shares of sequences, tokens and attention by length, and imbalance of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hydraulis.report import style
from hydraulis.report.style import Drawing
from hydraulis.text.values import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hydraulis.data.analysis import Analysis, BatchImbalance, LengthStatistics

_ATTENTION = style.CATEGORIES[3]
# Most characters of horizontal tick labels below a panel; longer ones are rotated.
_MOST_CHARACTERS = 85


def data_figure(analysis: Analysis) -> Drawing:
    """Draw shares by length and, if there are batches, their imbalance.

    Args:
        analysis: Analysis of the data set; without batches the figure has one panel.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    lengths, batches = analysis.lengths, analysis.batches
    columns = (1,) if batches is None else (1.9, 1)
    with Drawing(8.0 if batches is None else 11.0, 3.4, columns=columns) as drawing:
        _shares(drawing, drawing.panels[0], lengths)
        if batches is not None:
            _imbalance(drawing.panels[1], batches)
    return drawing


def _shares(drawing: Drawing, panel: Axes, lengths: LengthStatistics) -> None:
    places = np.arange(len(lengths.bins))
    kinds: tuple[tuple[str, str, Sequence[float]], ...] = (
        ("of the sequences", style.STATIC, [one.sequences for one in lengths.bins]),
        ("of the tokens", style.PLANNED, [one.tokens for one in lengths.bins]),
        ("of attention's time", _ATTENTION, [one.squares for one in lengths.bins]),
    )
    for number, (label, colour, amounts) in enumerate(kinds):
        shares = 100 * np.array(amounts) / sum(amounts)
        bars = panel.bar(places + 0.27 * (number - 1), shares, width=0.27, color=colour, label=label)
        for bar, share, one in zip(bars, shares, lengths.bins, strict=True):
            drawing.tip(bar, f"{one.range} tokens: {share:.1f} % {label}")
    _ranges(panel, [one.range for one in lengths.bins])
    panel.set_xlabel("tokens of a sequence")
    panel.set_ylabel("share, %")
    panel.set_title(
        f"{lengths.sequences:,} sequences, half of them up to {lengths.quantiles[0.5]:,} tokens, "
        f"the longest {lengths.longest:,}"
    )
    style.legend(panel, 3)


def _ranges(panel: Axes, ranges: Sequence[str]) -> None:
    panel.tick_params(axis="x", length=0)
    panel.set_xticks(range(len(ranges)), ranges)
    if len(ranges) * max(len(one) for one in ranges) > _MOST_CHARACTERS:
        for label in panel.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")


def _imbalance(panel: Axes, batches: BatchImbalance) -> None:
    _rising(panel, batches.token_imbalance, style.PLANNED, "tokens")
    _rising(panel, batches.square_imbalance, _ATTENTION, "attention's time")
    panel.set_ylim(bottom=1)
    why = "" if batches.replica_limit is None else f"\n({batches.replica_limit})"
    panel.set_xlabel(f"batches, by imbalance{why}")
    panel.set_ylabel("fullest replica / mean replica")
    panel.set_title(f"Assigned in turn to {format_count(batches.replicas, 'replica')}")
    style.steps(panel)
    style.legend(panel, 2)


def _rising(panel: Axes, values: Sequence[float], colour: str, label: str) -> None:
    panel.plot(np.arange(1, len(values) + 1), sorted(values), color=colour, label=label)
