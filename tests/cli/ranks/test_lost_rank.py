"""The report of a lost rank: which rank prints it, and the text around it."""

import io
import os
import sys
from collections.abc import Callable

import pytest

from hydraulis.cli.ranks.report import end_as_lost, report_as_rank
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.liveness import heartbeat

LOST = HydraulisError("another rank ended", code="lost_rank")
NAMED = HydraulisError("rank 3 ended: another rank ended", code="lost_rank")
LINE = "hydraulis.train: error [lost_rank]: rank 3 ended: another rank ended\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Found:
    """Stands in for the heartbeat: this rank prints an error, or another rank does."""

    def __init__(self, printed: HydraulisError | None) -> None:
        self._printed = printed

    def find_lost(self, error: HydraulisError) -> HydraulisError | None:
        assert error is LOST
        return self._printed


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that reports the loss as a remaining rank, and returns the output."""
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def report(rank: str, found: Found | None, stderr: io.StringIO) -> str:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(heartbeat, "current", lambda: found)
        assert report_as_rank("hydraulis.train", LOST) == 3
        return stderr.getvalue()

    return report


def test_only_the_chosen_rank_prints_the_report(lose: Callable[..., str]) -> None:
    assert lose("1", Found(NAMED), io.StringIO()) == LINE
    assert lose("2", Found(None), io.StringIO()) == ""


@pytest.mark.parametrize(
    ("rank", "term", "before"),
    [("0", "xterm-256color", ""), ("1", "xterm-256color", "\x1b[?25h\n"), ("1", "dumb", "\n")],
)
def test_on_a_terminal_another_rank_than_zero_begins_a_new_line(
    lose: Callable[..., str], monkeypatch: pytest.MonkeyPatch, rank: str, term: str, before: str
) -> None:
    monkeypatch.setenv("TERM", term)
    assert lose(rank, Found(NAMED), Terminal()) == before + LINE


def test_unjoined_ranks_report_once_on_a_node(lose: Callable[..., str]) -> None:
    said = "hydraulis.train: error [lost_rank]: another rank ended\n"
    assert [lose(rank, None, io.StringIO()) for rank in ("0", "1", "2")] == [said, said, ""]


def test_a_blocked_rank_is_ended_after_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setenv("RANK", "0")
    for error, said in ((NAMED, LINE), (None, "")):
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        end_as_lost("hydraulis.train", error)  # type: ignore[unreachable, unused-ignore]
        assert written.getvalue() == said
    assert codes == [3, 3]
