"""The report of a failed command of local ranks: one cause, printed once, after all ranks have ended."""

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from hydraulis.cli.exit import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_LOST_RANK,
    EXIT_PIPE_CLOSED,
    EXIT_REFUSED,
    EXIT_UNKNOWN,
    refuse,
)
from hydraulis.cli.ranks.report import end_progress_line
from hydraulis.errors import LOST_RANK, HydraulisError
from hydraulis.text.values import name_ranks

_PROGRAM = "hydraulis"
# Codes of ranks that have written an error or a traceback themselves.
_TOLD = (EXIT_INTERNAL, EXIT_REFUSED, EXIT_PIPE_CLOSED)
# Codes of ranks that a request to stop ended before they could handle it; 255 tells nothing, and counts too.
_STOPPED = (-signal.SIGTERM, EXIT_UNKNOWN)
_SILENT = HydraulisError("a rank did not answer, and no other one reports it; start again", code="lost_rank")


@dataclass(frozen=True, slots=True)
class EndedRank:
    """A rank that has ended.

    Attributes:
        code: Exit code; negative for the number of the signal that ended the rank.
        output: Standard error of the rank; None for rank 0, which shares that of its parent.
        errors: File with the error that the rank passed to its parent, if any.
    """

    code: int
    output: IO[bytes] | None
    errors: IO[bytes]

    def error(self, *, named: bool = True) -> HydraulisError | None:
        """Return the error that the rank passed to its parent; None without one.

        Args:
            named: Whether the message of a loss begins with the lost ranks.
        """
        self.errors.seek(0)
        try:
            passed = json.loads(self.errors.read())
        except ValueError:
            # Empty, or the rank was killed while it wrote.
            return None
        code = passed["code"]
        return HydraulisError(passed["message" if named else "unnamed"], code=code)


def report_failure(ranks: Sequence[EndedRank], failed: Sequence[int], *, is_stopped: bool) -> int:
    """Raise the cause of a failure, and print the standard error of its rank.

    An error that a rank reported is the cause, unless it is the loss of another rank. Otherwise the cause is
    the first rank that ended without a report: by a signal, by an exit code of a library, or with a traceback
    on its standard error.

    Args:
        ranks: All ranks.
        failed: The ranks that failed, in the order of their ends; at least one.
        is_stopped: Whether the command received a signal to stop.

    Returns:
        The exit code of ranks that reported their end themselves: an interrupt, or a traceback.

    Raises:
        HydraulisError: The cause, once for all ranks.
        KeyboardInterrupt: The signal to stop ended a rank before it could handle it.
    """
    if ranks[0].code not in (0, EXIT_INTERRUPTED, EXIT_LOST_RANK, *_TOLD):
        end_progress_line()
    errors = {rank: error for rank in failed if (error := ranks[rank].error()) is not None}
    for error in errors.values():
        if error.code != LOST_RANK:
            raise error
    first = next((rank for rank in failed if _is_unexplained(ranks[rank])), None)
    if is_stopped and (bool(errors) if first is None else ranks[first].code in _STOPPED):
        # The ranks were still loading, or connecting to each other.
        raise KeyboardInterrupt
    if first is None:
        if errors or any(rank.code == EXIT_LOST_RANK for rank in ranks):
            raise next(iter(errors.values()), _SILENT)
        return EXIT_INTERRUPTED
    _print(ranks[first].output)
    if ranks[first].code not in _TOLD:
        unnamed = next((ranks[rank].error(named=False) for rank in errors), None)
        together = sorted(rank for rank in failed if ranks[rank].code == ranks[first].code)
        raise _loss_of(together, ranks[first].code, unnamed)
    if errors:
        # It names the newest checkpoint.
        refuse(_PROGRAM, next(iter(errors.values())))
    return ranks[first].code


def _is_unexplained(rank: EndedRank) -> bool:
    return rank.code not in (EXIT_INTERRUPTED, EXIT_LOST_RANK) and rank.error() is None


def _loss_of(ranks: Sequence[int], code: int, lost: HydraulisError | None) -> HydraulisError:
    """Return the loss of ranks that ended with one code, before the error of a rank that noticed it."""
    listed = name_ranks(ranks)
    advice = "SIGKILL is also the signal of the kernel when memory runs out; start again"
    if code == EXIT_UNKNOWN:
        said = f"the process that forks ranks was killed, or {listed} ended with exit code {code}"
    elif code < 0:
        known = -code in set(signal.Signals)
        said = f"{signal.Signals(-code).name if known else f'signal {-code}'} ended {listed}"
    else:
        said = f"{listed} ended with exit code {code}"
        advice = "a library may have ended the process; start again"
    return HydraulisError(f"{said}: {lost or advice}", code="lost_rank")


def _print(output: IO[bytes] | None) -> None:
    """Print a rank's standard error, if it was collected."""
    if output is not None:
        output.seek(0)
        sys.stderr.write(output.read().decode(errors="backslashreplace"))
        sys.stderr.flush()
