"""How the loss of a rank is told: by whom, and who does not answer."""

import io
import sys
from collections.abc import Callable

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hydraulis.cli.ranks import loss
from hydraulis.cli.ranks.rank import report_as_rank
from hydraulis.errors import HydraulisError

LOST = HydraulisError("another rank ended", code="lost_rank")
NOBODY_KNOWS = "hydraulis.train: error [lost_rank]: another rank ended\n"


def said(missing: str) -> str:
    who = f"no answer from {missing} (host not known)"
    return f"hydraulis.train: error [lost_rank]: {who}: another rank ended\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, io.StringIO], str]:
    """Give what reports the loss of rank 3 as one of those that are left, and says what was written."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    monkeypatch.setattr(loss, "ANSWER_S", 0.1)
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


def test_a_lost_rank_is_told_by_the_first_that_comes(lose: Callable[[str, io.StringIO], str]) -> None:
    assert [lose(rank, io.StringIO()) for rank in "210"] == [said("ranks 0, 1, 3"), "", ""]


def test_on_a_terminal_the_rank_whose_line_it_shows_tells_of_a_lost_one(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "DISPLAY_S", 60.0)
    terminal = Terminal()
    told: list[str] = []

    def come(_: float) -> None:
        if not told:
            told.append("")
            told[0] = lose("0", terminal)

    monkeypatch.setattr("hydraulis.cli.ranks.loss.time.sleep", come)
    assert lose("1", terminal) == said("ranks 1, 2, 3")
    # By rank 0, while the other one waited.
    assert told == [said("ranks 1, 2, 3")]


def test_where_that_rank_is_gone_its_line_is_left_before_another_is_told(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "DISPLAY_S", 0.1)
    assert lose("1", Terminal()) == "\x1b[?25h\n" + said("ranks 0, 2, 3")
    assert lose("2", Terminal()) == ""


def test_a_terminal_that_knows_no_cursor_gets_a_new_line_alone(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "DISPLAY_S", 0.1)
    monkeypatch.setenv("TERM", "dumb")
    assert lose("1", Terminal()) == "\n" + said("ranks 0, 2, 3")


def test_where_all_answer_none_is_missing(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    said = "hydraulis.train: error [lost_rank]: all ranks answer again: another rank ended\n"
    assert lose("0", io.StringIO()) == said


def test_without_the_store_each_tells_what_it_knows(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> None:
        message = "planted"
        raise RuntimeError(message)

    monkeypatch.setattr("hydraulis.runtime.ranks.liveness.RollCall", unreachable)
    assert [lose(rank, io.StringIO()) for rank in "01"] == [NOBODY_KNOWS] * 2
