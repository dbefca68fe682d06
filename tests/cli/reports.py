"""The progress that a command reports."""

from typing import NamedTuple

import pytest

from hydraulis.cli.terminal.progress import Progress


class Report(NamedTuple):
    """One report: an activity, its completed items, and all of them."""

    name: str
    done: int
    total: int


def collect_reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """Collect all reports from now on."""
    reports: list[Report] = []

    def take(_: Progress, name: str, done: int, total: int, *, is_share: bool) -> None:
        assert is_share or done <= total or not total
        reports.append(Report(name, done, total))

    monkeypatch.setattr(Progress, "_report", take)
    return reports


def interrupt_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Raise KeyboardInterrupt at the first report of an activity."""

    def take(_: Progress, reported: str, *_counts: int, is_share: bool) -> None:
        del is_share
        if reported == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "_report", take)
