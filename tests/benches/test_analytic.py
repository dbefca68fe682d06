"""Times by arithmetic against those of one H100."""

import importlib
import statistics

import pytest

from helpers import ROOT


def test_measured_times_of_an_h100_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are about 1.2 times the errors of `python benches/analytic.py`."""
    monkeypatch.syspath_prepend(ROOT)
    bench = importlib.import_module("benches.analytic")
    found = [abs(error) for error in bench.errors_on_h100().values()]
    assert len(found) == 23
    assert statistics.median(found) < 0.065
    assert max(found) < 0.165
    # The tables of the A800 alone would give a 2.3 times shorter attention.
    table = bench.Efficiency.shipped("A800")
    assert table.of_attention > 2 * bench.Efficiency.shipped("H100").of_attention
    assert "1.1B on one H100" in bench.row_of_h100()
