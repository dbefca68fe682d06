"""The figure that compares planners."""

import numpy as np
import pytest

from hydraulis import Cluster, CostProfile
from hydraulis.planner.compare import ComparisonSetup, compare
from hydraulis.report.comparison import comparison_figure


@pytest.mark.parametrize("planners", [["search"], ["static", "list", "search", "16x<tp4>"]])
def test_the_legend_is_between_the_panels(planners: list[str]) -> None:
    batches = [np.random.default_rng(0).lognormal(6, 1, 99).astype(int).clip(1, 9_000)]
    profile = CostProfile.preset("llama-32b-a800")
    setting = ComparisonSetup(profile=profile, cluster=Cluster(64, 8), batches=batches, slowdowns={5: 1.5})
    drawing = comparison_figure(compare(setting, planners), "made up")
    drawing.figure.draw_without_rendering()
    parts, singles = drawing.panels
    legend = parts.get_legend()
    assert legend is not None
    assert parts.get_window_extent().y0 > legend.get_window_extent().y1
    assert legend.get_window_extent().y0 > singles.get_window_extent().y1
    titles = [panel.get_title(loc="left") for panel in drawing.panels]
    assert titles == [
        "Use of a GPU's mean step, simulated",
        "1 step (bar: median, triangle: 99th percentile)",
    ]
