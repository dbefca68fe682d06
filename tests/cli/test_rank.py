"""How a command ends: its one line, and what torchrun is told."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hydraulis.cli import rank as as_rank
from hydraulis.cli.rank import PARENT, report_as_rank, report_before_meeting
from hydraulis.errors import HydraulisError, InvalidInputError

ERROR = InvalidInputError("steps = 0:\nraise it", code="config_value")
LOST = HydraulisError("another rank ended", code="lost_rank")
SAID = "hydraulis.train: error [lost_rank]: another rank ended\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, io.StringIO], str]:
    """Give what reports the loss of a rank as one of those that are left, and says what was written."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
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


@pytest.mark.parametrize(("rank", "local_rank", "said"), [("0", "0", 2), ("4", "0", 1), ("5", "1", 0)])
def test_of_ranks_that_are_refused_alike_the_first_reports(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rank: str,
    local_rank: str,
    said: int,
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    codes = [report_as_rank("hydraulis.train", ERROR, number) for number in ("RANK", "LOCAL_RANK")]
    assert codes == [2, 2]
    assert capsys.readouterr().err == said * "hydraulis.train: error [config_value]: steps = 0: raise it\n"


def test_each_rank_tells_torchrun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setenv("RANK", "3")
    assert report_as_rank("hydraulis.train", ERROR, "RANK") == 2
    assert capsys.readouterr().err == ""
    assert json.loads(file.read_text())["message"]["message"] == "refused [config_value]: steps = 0: raise it"
    assert list(tmp_path.iterdir()) == [file]
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    assert report_as_rank("hydraulis.train", ERROR, "RANK") == 2


@pytest.mark.parametrize(
    ("rank", "nodes", "parent", "said", "done"),
    [
        ("0", 1, False, True, []),
        ("1", 1, False, False, ["wait"]),
        ("0", 2, False, True, ["meet"]),
        ("1", 2, False, False, ["meet"]),
        ("1", 1, True, True, []),
    ],
)
def test_before_ranks_meet_nobody_leaves_who_would_be_missed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    rank: str,
    nodes: int,
    parent: bool,
    said: bool,
    done: list[str],
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    for name, value in {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": str(2 * nodes)}.items():
        monkeypatch.setenv(name, value)
    if parent:
        monkeypatch.setenv(PARENT, "1")
    found: list[str] = []
    monkeypatch.setattr("hydraulis.cli.rank.time.sleep", lambda _: found.append("wait"))
    monkeypatch.setattr("hydraulis.cli.rank._meet", lambda: found.append("meet"))
    assert report_before_meeting("hydraulis.train", ERROR) == 2
    assert found == done
    assert capsys.readouterr().err.count("[config_value]") == said


def test_a_lost_rank_is_told_by_the_first_that_comes(lose: Callable[[str, io.StringIO], str]) -> None:
    assert [lose(rank, io.StringIO()) for rank in "210"] == [SAID, "", ""]


def test_on_a_terminal_the_rank_whose_line_it_shows_tells_of_a_lost_one(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_rank, "DISPLAY_S", 60.0)
    terminal = Terminal()
    said: list[str] = []
    monkeypatch.setattr("hydraulis.cli.rank.time.sleep", lambda _: said.append(lose("0", terminal)))
    assert lose("1", terminal) == SAID
    # By rank 0, while the other one waited.
    assert said == [SAID]


def test_where_that_rank_is_gone_its_line_is_left_before_another_is_told(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_rank, "DISPLAY_S", 0.1)
    assert lose("1", Terminal()) == f"\x1b[?25h\n{SAID}"
    assert lose("2", Terminal()) == ""


def test_a_terminal_that_knows_no_cursor_gets_a_new_line_alone(
    lose: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_rank, "DISPLAY_S", 0.1)
    monkeypatch.setenv("TERM", "dumb")
    assert lose("1", Terminal()) == f"\n{SAID}"
