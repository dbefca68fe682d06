"""Error reports of ranks: the printed line, and the error passed to torchrun."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from hydraulis.cli.ranks.failure import EndedRank
from hydraulis.cli.ranks.report import (
    ERROR_FILE,
    PARENT,
    PATIENCE_S,
    report_as_rank,
    report_before_meeting,
)
from hydraulis.errors import InvalidInputError

ERROR = InvalidInputError("steps = 0:\nraise it", code="config_value")


@pytest.mark.parametrize(("rank", "local_rank", "said"), [("0", "0", 2), ("4", "0", 1), ("5", "1", 0)])
def test_the_first_rank_reports_a_shared_error(
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


def test_each_rank_passes_the_error_to_torchrun(
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
    ("rank", "nodes", "said", "done"),
    [
        ("0", 1, True, []),
        ("1", 1, False, ["wait"]),
        ("0", 2, True, ["meet"]),
        ("1", 2, False, ["meet"]),
    ],
)
def test_before_ranks_meet_others_wait_for_the_report(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    rank: str,
    nodes: int,
    said: bool,
    done: list[str],
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    for name, value in {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": str(2 * nodes)}.items():
        monkeypatch.setenv(name, value)
    found: list[str] = []
    monkeypatch.setattr("hydraulis.cli.ranks.report.time.sleep", lambda _: found.append("wait"))
    monkeypatch.setattr("hydraulis.cli.ranks.report._tell_others", lambda _: found.append("meet"))
    assert report_before_meeting("hydraulis.train", ERROR) == 2
    assert found == done
    assert capsys.readouterr().err.count("[config_value]") == said


def test_other_nodes_learn_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("hydraulis.runtime.ranks.joining.tell_refusal", lambda *given: told.extend(given))
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    for name, value in {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert report_before_meeting("hydraulis.train", ERROR) == 2
    assert told == [timedelta(seconds=PATIENCE_S), ERROR]


def test_a_rank_leaves_its_error_to_the_parent_and_waits_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delattr("hydraulis.cli.ranks.report.time.sleep")
    monkeypatch.setenv(PARENT, "1")
    with (tmp_path / "errors").open("w+b") as file:
        monkeypatch.setenv(ERROR_FILE, str(file.fileno()))
        assert report_before_meeting("hydraulis", ERROR) == 2
        passed = EndedRank(2, None, file).error()
    assert passed is not None
    assert (passed.code, str(passed)) == (ERROR.code, str(ERROR))
    assert capsys.readouterr().err == ""


def test_a_rank_without_an_error_passes_none(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+b") as file:
        assert EndedRank(1, None, file).error() is None
