"""The row of numbers in which a rank's report travels."""

import pytest

from hydraulis.runtime.step_result import NUMBERS, RankReport, TimedCrossing


@pytest.mark.parametrize("times", [[], [1.5, 2.5]])
def test_a_report_fills_its_row(times: list[float]) -> None:
    report = RankReport(times, 7, None, is_counted=True, crossing=TimedCrossing(0.5, 3, 2))
    assert RankReport.from_row(report.to_row(NUMBERS + len(times)).tolist()) == report
    with pytest.raises(RuntimeError, match="size"):
        report.to_row(NUMBERS + len(times) - 1)
