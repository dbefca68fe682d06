"""The report of a failed command of local ranks: its one cause, and its exit code."""

import io
import json
import signal
import sys
from pathlib import Path
from typing import IO

import pytest

from helpers import refused
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.ranks.failure import EndedRank, report_failure
from hydraulis.cli.terminal.output import tolerating_lost_output

LOST = {
    "code": "lost_rank",
    "message": "rank 1 ended: go on with --resume run",
    "unnamed": "go on with --resume run",
}
FULL = {"code": "file_unwritable", "message": "disk 1 is full", "unnamed": "disk 1 is full"}


def rank(code: int, passed: dict[str, str] | None = None, output: str | None = None) -> EndedRank:
    errors: IO[bytes] = io.BytesIO(b"" if passed is None else json.dumps(passed).encode())
    return EndedRank(code, None if output is None else io.BytesIO(output.encode()), errors)


@pytest.mark.parametrize(
    ("ranks", "failed", "code", "message", "printed"),
    [
        # One rank knows the cause, and the others lost it.
        ([rank(3, LOST), rank(2, FULL, "")], [0, 1], "file_unwritable", "disk 1 is full", ""),
        # The text of an abort stands above its line.
        (
            [rank(3, LOST), rank(-signal.SIGABRT, None, "terminate called\n")],
            [1, 0],
            "lost_rank",
            "SIGABRT ended rank 1: go on with --resume run",
            "terminate called\n",
        ),
        # A rank is silent: the others name it, and one of them passes the error.
        (
            [rank(3), rank(-signal.SIGKILL, None, ""), rank(3, LOST, "")],
            [0, 2],
            "lost_rank",
            "rank 1 ended: go on with --resume run",
            "",
        ),
        ([rank(3), rank(-signal.SIGKILL, None, "")], [0], "lost_rank", "no other one reports it; start", ""),
        # Two ranks of three end by the same signal.
        (
            [rank(3, LOST), rank(-signal.SIGKILL, None, ""), rank(-signal.SIGKILL, None, "")],
            [2, 0, 1],
            "lost_rank",
            "SIGKILL ended ranks 1, 2: go on with --resume run",
            "",
        ),
        # A library ends the process, as `exit(7)` in C does.
        (
            [rank(3, LOST), rank(7, None, "no licence\n")],
            [1, 0],
            "lost_rank",
            "rank 1 ended with exit code 7: go on with --resume run",
            "no licence\n",
        ),
        # The fork server was killed, and no rank's end is known.
        (
            [rank(255), rank(255, None, "")],
            [0, 1],
            "lost_rank",
            "the process that forks ranks was killed, or ranks 0, 1 ended with exit code 255: SIGKILL",
            "",
        ),
        # The same, and a rank reported the loss of a stopped one.
        (
            [rank(255, LOST), rank(255, None, "")],
            [0],
            "lost_rank",
            "rank 1 ended: go on with --resume run",
            "",
        ),
        # Half of an error: its rank was killed meanwhile.
        (
            [EndedRank(-signal.SIGKILL, None, io.BytesIO(b'{"code":'))],
            [0],
            "lost_rank",
            "SIGKILL ended rank 0: SIGKILL is also the signal of the kernel when memory runs out",
            "",
        ),
    ],
)
def test_the_cause_is_raised(
    ranks: list[EndedRank],
    failed: list[int],
    code: str,
    message: str,
    printed: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with refused(code, message):
        report_failure(ranks, failed, is_stopped=False)
    assert capfd.readouterr().err == printed


def test_a_traceback_precedes_the_advice_to_resume(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = [rank(3, LOST), rank(1, None, "Traceback\n")]
    assert report_failure(ranks, [1, 0], is_stopped=False) == 1
    said = "Traceback\nhydraulis: error [lost_rank]: rank 1 ended: go on with --resume run\n"
    assert capfd.readouterr().err == said


def test_stopped_ranks_add_no_report(capfd: pytest.CaptureFixture[str]) -> None:
    assert report_failure([rank(130), rank(130, None, "")], [0, 1], is_stopped=True) == EXIT_INTERRUPTED
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(-signal.SIGTERM), rank(-signal.SIGTERM, None, "")],
        # The fork server was killed after the request.
        [rank(255), rank(255, None, "")],
        # Terminated while the ranks joined.
        [rank(3, LOST), rank(3, None, "")],
    ],
)
def test_a_stop_before_the_first_step_is_an_interrupt(
    ranks: list[EndedRank], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        report_failure(ranks, [0, 1], is_stopped=True)
    assert capfd.readouterr().err == ""


def test_a_failure_during_a_stop_is_the_cause() -> None:
    with refused("file_unwritable", "disk 1 is full"):
        report_failure([rank(2, FULL), rank(3, LOST, "")], [0, 1], is_stopped=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_standard_error_without_room_does_not_replace_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "terminate called\n" * 10_000
    with Path("/dev/full").open("w") as full, monkeypatch.context() as replaced:
        replaced.setattr(sys, "stderr", full)
        with tolerating_lost_output(), refused("lost_rank", "SIGABRT ended rank 1"):
            report_failure([rank(0), rank(-signal.SIGABRT, None, printed)], [1], is_stopped=False)
