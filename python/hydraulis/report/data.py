"""A data set: where its sequences, its tokens and its attention are by length, and how uneven batches are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hydraulis.report import style
from hydraulis.report.style import Drawing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hydraulis.data.analysis import Analysis, BatchImbalance, LengthStatistics

_ATTENTION = style.CATEGORIES[3]


def data_figure(analysis: Analysis) -> Drawing:
    """Draw shares by length and, where there are batches, how uneven they are.

    Args:
        analysis: of the data set; without batches it is the first panel alone.

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
            drawing.tip(bar, f"{one.first:,} to {one.last:,} tokens: {share:.1f} % {label}")
    panel.set_xticks(places, [f"{one.first:,}" for one in lengths.bins])
    panel.tick_params(axis="x", length=0, rotation=35 if len(places) > 9 else 0)
    panel.set_xlabel("tokens of a sequence, from")
    panel.set_ylabel("%")
    panel.set_title(
        f"{lengths.sequences:,} sequences, half of them up to {lengths.quantiles[0.5]:,} tokens, "
        f"the longest {lengths.longest:,}"
    )
    panel.legend(loc="upper left")


def _imbalance(panel: Axes, batches: BatchImbalance) -> None:
    _rising(panel, batches.token_imbalance, style.PLANNED, "tokens")
    _rising(panel, batches.square_imbalance, _ATTENTION, "attention's time")
    panel.set_ylim(bottom=1)
    panel.set_xlabel("batches, the evenest first")
    panel.set_ylabel(f"fullest of {batches.replicas} replicas / mean")
    panel.set_title("Sequences dealt out in turn")
    panel.legend(loc="upper left")


def _rising(panel: Axes, values: Sequence[float], colour: str, label: str) -> None:
    panel.plot(np.arange(1, len(values) + 1), sorted(values), color=colour, label=label)
