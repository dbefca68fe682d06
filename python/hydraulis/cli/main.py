"""The `hydraulis` command: finds the subcommand, runs it, and turns errors into one line and an exit code.

A subcommand is a module of two functions, `add_parser` and `run`, listed in `COMMANDS`. Starting the command
imports neither torch nor rich, so that `hydraulis plan` answers at once on a machine that has only numpy.
"""

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib.metadata import version

from hydraulis.cli.commands import (
    analyze,
    check,
    config,
    export,
    pack,
    plan,
    profile,
    propose,
    report,
    simulate,
)
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED
from hydraulis.cli.exit import report as refuse
from hydraulis.cli.parser import Parser
from hydraulis.cli.ranks.rank import is_rank, report_before_meeting
from hydraulis.cli.terminal.output import discard
from hydraulis.errors import HydraulisError, InvalidInputError

COMMANDS = (analyze, plan, propose, simulate, profile, config, check, report, pack, export)

_PROGRAM = "hydraulis"
# How a write fails that has nowhere to go.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_EPILOG = """\
exit codes:
  0    done
  1    internal error: a result broke a promise; please report it
  2    an argument, a file or a batch was refused
  3    another rank ended
  130  interrupted or terminated
  141  the reader of the output went away
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process when None.

    Returns:
        The exit code, as `hydraulis --help` lists it.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(words)
        # Here and not at exit, where a closed pipe could no longer be caught.
        sys.stdout.flush()
    except HydraulisError as error:
        return _report(error)
    except KeyboardInterrupt:
        sys.stderr.write("hydraulis: interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Else the interpreter's last flush would go into the closed pipe.
        discard(sys.stdout)
        return EXIT_PIPE_CLOSED
    except OSError as error:
        # What other files are refused for has a code, and their names: this is standard output.
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        discard(sys.stdout)
        why = error.strerror or error
        message = f"standard output cannot be written: {why}; make room, or redirect it"
        return _report(InvalidInputError(message, code="file_unwritable"))
    return code


def _report(error: HydraulisError) -> int:
    return report_before_meeting(_PROGRAM, error) if is_rank() else refuse(_PROGRAM, error)


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["train"]:
        message = (
            "training runs under torchrun: start it as torchrun --standalone --nproc-per-node N -m "
            "hydraulis.train RUN.toml"
        )
        raise InvalidInputError(message, code="not_torchrun")
    parsed = make_parser().parse_args(words)
    code: int = parsed.run(parsed)
    return code


def make_parser() -> argparse.ArgumentParser:
    """Declare every subcommand and its options."""
    parser = Parser(
        prog=_PROGRAM,
        description="Plans every training iteration anew for variable-length sequences.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hydraulis {version('hydraulis')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
