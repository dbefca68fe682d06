"""A step in words."""

import pytest

from hydraulis.cli.terminal.step import Step


@pytest.mark.parametrize(
    ("step", "count", "spent"),
    [
        (Step("planning", 12, 50, 100.0, 106.0), "12 of 50", "0:19 left"),
        (Step("packing", 250, 1000, 100.0, 106.0, is_share=True), "25%", "0:18 left"),
        (Step("searching", 0, 50, 100.0, 106.0), "0 of 50", "for 0:06"),
        (Step("searching", 50, 50, 100.0, 106.0), "50 of 50", "for 0:06"),
        (Step("loading torch", 0, 0, 100.0, 106.0), "", "for 0:06"),
        (Step("indexing", 1, 3_001, 100.0, 106.0), "1 of 3,001", "5:00:00 left"),
        # What an earlier attempt did took this one no time.
        (Step("indexing", 90, 100, 100.0, 106.0, first=80), "90 of 100", "0:06 left"),
        (Step("indexing", 80, 100, 100.0, 106.0, first=80), "80 of 100", "for 0:06"),
    ],
)
def test_a_step_says_how_much_is_done_and_how_long_it_will_be(step: Step, count: str, spent: str) -> None:
    assert step.count() == count
    assert step.time(106.0) == spent


def test_what_is_left_is_counted_down_between_two_marks() -> None:
    step = Step("measuring", 250, 1000, 100.0, 106.0, is_share=True)
    assert [step.time(now) for now in (106.0, 107.0, 116.0, 140.0)] == [
        "0:18 left",
        "0:17 left",
        "0:08 left",
        # The next mark is late: the estimate was wrong.
        "for 0:40",
    ]
