"""The report of a lost rank: which rank prints it, and the ranks it names."""

import io
import sys
from collections.abc import Callable

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hydraulis.cli.ranks import lost_rank
from hydraulis.cli.ranks.report import report_as_rank
from hydraulis.errors import HydraulisError

LOST = HydraulisError("another rank ended", code="lost_rank")
WITHOUT_STORE = "hydraulis.train: error [lost_rank]: another rank ended\n"


def line(missing: str) -> str:
    who = f"no answer from {missing} (host not known)"
    return f"hydraulis.train: error [lost_rank]: {who}: another rank ended\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, io.StringIO], str]:
    """Return a function that reports the loss of rank 3 as a remaining rank, and returns the output."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    monkeypatch.setattr(lost_rank, "ANSWER_S", 0.1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TERM", "xterm-256color")

    def report(rank: str, stderr: io.StringIO) -> str:
        assert store.port
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(sys, "stderr", stderr)
        assert report_as_rank("hydraulis.train", LOST) == 3
        return stderr.getvalue()

    return report


def test_the_first_remaining_rank_reports_a_lost_one(lose: Callable[[str, io.StringIO], str]) -> None:
    assert [lose(rank, io.StringIO()) for rank in "210"] == [line("ranks 0, 1, 3"), "", ""]


def test_on_a_terminal_rank_zero_reports(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_rank, "DISPLAY_S", 60.0)
    terminal = Terminal()
    printed: list[str] = []

    def come(_: float) -> None:
        if not printed:
            printed.append("")
            printed[0] = lose("0", terminal)

    monkeypatch.setattr("hydraulis.cli.ranks.lost_rank.time.sleep", come)
    assert lose("1", terminal) == line("ranks 1, 2, 3")
    # Rank 0 printed it while rank 1 waited.
    assert printed == [line("ranks 1, 2, 3")]


def test_without_rank_zero_another_rank_begins_a_new_line(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_rank, "DISPLAY_S", 0.1)
    assert lose("1", Terminal()) == "\x1b[?25h\n" + line("ranks 0, 2, 3")
    assert lose("2", Terminal()) == ""


def test_a_terminal_that_knows_no_cursor_gets_a_new_line_alone(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_rank, "DISPLAY_S", 0.1)
    monkeypatch.setenv("TERM", "dumb")
    assert lose("1", Terminal()) == "\n" + line("ranks 0, 2, 3")


def test_with_all_answers_no_rank_is_missing(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    said = "hydraulis.train: error [lost_rank]: all ranks answer again: another rank ended\n"
    assert lose("0", io.StringIO()) == said


def test_without_the_store_each_rank_reports(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> None:
        message = "planted"
        raise RuntimeError(message)

    monkeypatch.setattr("hydraulis.runtime.ranks.liveness.RollCall", unreachable)
    assert [lose(rank, io.StringIO()) for rank in "01"] == [WITHOUT_STORE] * 2
