"""How long the sequences are, and where the tokens are."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hydraulis.report import style
from hydraulis.report.style import Drawing

if TYPE_CHECKING:
    import numpy.typing as npt


def lengths_figure(lengths: npt.NDArray[np.int64]) -> Drawing:
    """Draw the share of sequences and the share of tokens by length.

    Args:
        lengths: tokens of each sequence, of shape (sequences,), at least one.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    edges = octaves(lengths)
    sequences, _ = np.histogram(lengths, edges)
    tokens, _ = np.histogram(lengths, edges, weights=lengths)
    with Drawing(8.0, 3.0) as drawing:
        (panel,) = drawing.panels
        places = np.arange(len(sequences))
        longest = int(lengths.max())
        bounds = [(low, min(high - 1, longest)) for low, high in pairwise(edges)]
        for offset, counts, colour, label in (
            (-0.2, sequences, style.STATIC, "of the sequences"),
            (0.2, tokens, style.PLANNED, "of the tokens"),
        ):
            shares = 100 * counts / counts.sum()
            bars = panel.bar(places + offset, shares, width=0.4, color=colour, label=label)
            for bar, share, (low, high) in zip(bars, shares, bounds, strict=True):
                drawing.tip(bar, f"{low:,} to {high:,} tokens: {share:.1f} % {label}")
        panel.set_xticks(
            places, [f"{low:,}–\n{high:,}" if low < high else f"{low:,}" for low, high in bounds]
        )
        panel.tick_params(axis="x", length=0)
        panel.set_ylabel("%")
        panel.set_xlabel("tokens of a sequence")
        panel.set_title(
            f"{len(lengths):,} sequences, half of them up to {np.median(lengths):,.0f} tokens, "
            f"the longest {longest:,}"
        )
        panel.legend(loc="upper left")
    return drawing


def octaves(lengths: npt.NDArray[np.int64]) -> list[int]:
    """Return edges that double up to above the longest; what is below the 1st percentile stands together."""
    first = int(np.percentile(lengths, 1)).bit_length()
    last = int(lengths.max()).bit_length()
    return [1, *(2**power for power in range(first, last + 1))]
