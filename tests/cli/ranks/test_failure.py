"""The report of a failed command of local ranks: its one cause, and its exit code."""

import io
import json
import signal
from typing import IO

import pytest

from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_LOST_RANK, EXIT_REFUSED
from hydraulis.cli.ranks.failure import EndedRank, report_failure

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
    ("ranks", "failed", "code", "said"),
    [
        # One rank knows the cause, and the others lost it.
        (
            [rank(3, LOST), rank(2, FULL, "")],
            [0, 1],
            EXIT_REFUSED,
            "hydraulis: error [file_unwritable]: disk 1 is full\n",
        ),
        # A rank failed with a traceback, which stands above the way to go on.
        (
            [rank(3, LOST), rank(1, None, "Traceback\n")],
            [1, 0],
            1,
            "Traceback\nhydraulis: error [lost_rank]: rank 1 ended: go on with --resume run\n",
        ),
        # The text of an abort stands above its line.
        (
            [rank(3, LOST), rank(-signal.SIGABRT, None, "terminate called\n")],
            [1, 0],
            EXIT_LOST_RANK,
            "terminate called\nhydraulis: error [lost_rank]: SIGABRT ended rank 1: go on with --resume run\n",
        ),
        # A rank is silent: the others name it, and one of them passes the error.
        (
            [rank(3), rank(-signal.SIGKILL, None, ""), rank(3, LOST, "")],
            [0, 2],
            EXIT_LOST_RANK,
            "hydraulis: error [lost_rank]: rank 1 ended: go on with --resume run\n",
        ),
        (
            [rank(3), rank(-signal.SIGKILL, None, "")],
            [0],
            EXIT_LOST_RANK,
            "hydraulis: error [lost_rank]: a rank did not answer, and no other one reports it; start again\n",
        ),
        ([rank(130), rank(130, None, "")], [0, 1], EXIT_INTERRUPTED, ""),
        # Half of an error: its rank was killed meanwhile.
        (
            [EndedRank(-signal.SIGKILL, None, io.BytesIO(b'{"code":'))],
            [0],
            EXIT_LOST_RANK,
            "hydraulis: error [lost_rank]: SIGKILL ended rank 0: SIGKILL is also the signal of the kernel "
            "when memory runs out; start again\n",
        ),
    ],
)
def test_one_cause_is_reported(
    ranks: list[EndedRank], failed: list[int], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert report_failure(ranks, failed, is_stopped=False) == code
    assert capfd.readouterr().err == said


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(-signal.SIGTERM), rank(-signal.SIGTERM, None, "")],
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


def test_a_failure_during_a_stop_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    assert report_failure([rank(2, FULL), rank(3, LOST, "")], [0, 1], is_stopped=True) == EXIT_REFUSED
    assert capfd.readouterr().err == "hydraulis: error [file_unwritable]: disk 1 is full\n"
