"""An activity in words."""

import pytest

from hydraulis.cli.terminal.activity import Activity


@pytest.mark.parametrize(
    ("activity", "count", "spent"),
    [
        (Activity("planning", 12, 50, 100.0, 106.0), "12 of 50", "0:19 left"),
        (Activity("packing", 250, 1000, 100.0, 106.0, is_share=True), "25%", "0:18 left"),
        (Activity("searching", 0, 50, 100.0, 106.0), "0 of 50", "for 0:06"),
        (Activity("searching", 50, 50, 100.0, 106.0), "50 of 50", "for 0:06"),
        (Activity("loading torch", 0, 0, 100.0, 106.0), "", "for 0:06"),
        (Activity("indexing", 1, 3_001, 100.0, 106.0), "1 of 3,001", "5:00:00 left"),
        # The items of an earlier attempt took no time in this one.
        (Activity("indexing", 90, 100, 100.0, 106.0, first=80), "90 of 100", "0:06 left"),
        (Activity("indexing", 80, 100, 100.0, 106.0, first=80), "80 of 100", "for 0:06"),
    ],
)
def test_an_activity_has_progress_and_remaining_time(activity: Activity, count: str, spent: str) -> None:
    assert activity.count() == count
    assert activity.time(106.0) == spent


def test_remaining_time_counts_down_between_two_updates() -> None:
    activity = Activity("measuring", 250, 1000, 100.0, 106.0, is_share=True)
    assert [activity.time(now) for now in (106.0, 107.0, 116.0, 140.0)] == [
        "0:18 left",
        "0:17 left",
        "0:08 left",
        # The next update is overdue: the estimate was wrong.
        "for 0:40",
    ]
