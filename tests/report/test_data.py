"""The figure of a data set: its bars, their labels, and the imbalance of batches."""

from itertools import pairwise

import numpy as np
import pytest

from hydraulis.data.analysis import Analysis, compute_batch_imbalance, compute_length_statistics
from hydraulis.report.data import data_figure


def analysed(lengths: list[int], *batches: list[int]) -> Analysis:
    whole = np.array(lengths)
    assigned = compute_batch_imbalance([np.array(one) for one in batches], 8) if batches else None
    return Analysis(lengths=compute_length_statistics(whole, whole - 1), batches=assigned)


def test_the_shares_of_sequences_tokens_and_attention_are_drawn() -> None:
    (panel,) = data_figure(analysed([2] * 30 + [64])).panels
    heights = [round(float(bar.get_height())) for bar in panel.patches]  # type: ignore[attr-defined]
    assert heights == [97, 0, 0, 0, 0, 3, 48, 0, 0, 0, 0, 52, 3, 0, 0, 0, 0, 97]
    labels = [label.get_text() for label in panel.get_xticklabels()]
    assert labels == ["2-3", "4-7", "8-15", "16-31", "32-63", "64"]
    assert panel.get_title(loc="left") == "31 sequences, half of them up to 2 tokens, the longest 64"


@pytest.mark.parametrize("longest", [1, 500, 40_000, 1_000_000])
def test_ranges_below_the_bars_do_not_collide(longest: int) -> None:
    drawing = data_figure(analysed([1, longest], [1, longest]))
    drawing.figure.draw_without_rendering()
    labels = drawing.panels[0].get_xticklabels()
    assert labels[0].get_text() == "1"
    heights = {label.get_rotation() for label in labels}
    if heights == {0.0}:
        extents = [label.get_window_extent() for label in labels]
        assert all(one.x1 < other.x0 for one, other in pairwise(extents))
    else:
        assert (heights, longest > 500) == ({35.0}, True)


def test_the_number_of_replicas_is_explained() -> None:
    _, few = data_figure(analysed([5, 6], [5, 6, 5], [6, 6, 6])).panels
    assert few.get_title(loc="left") == "Assigned in turn to 3 replicas"
    assert few.get_xlabel() == "batches, by imbalance\n(half of the batches have no more sequences)"
    _, many = data_figure(analysed([5, 6], [5, 6] * 9)).panels
    assert many.get_title(loc="left") == "Assigned in turn to 8 replicas"
    assert many.get_xlabel() == "batches, by imbalance"
