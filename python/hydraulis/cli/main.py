"""The `hydraulis` command: runs a subcommand, and reports errors in one line with an exit code.

A subcommand is a module in `COMMANDS` with two functions, `add_parser` and `run`. Starting the command
imports neither torch nor rich: `hydraulis plan` answers at once, and needs only numpy.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version

from hydraulis.cli.commands import (
    analyze,
    bench,
    check,
    config,
    export,
    pack,
    plan,
    profile,
    propose,
    report,
    simulate,
    train,
    tune,
)
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED, refuse
from hydraulis.cli.parser import Parser
from hydraulis.cli.ranks.report import is_rank, report_before_meeting
from hydraulis.cli.terminal.output import discard, refusal_of_output
from hydraulis.errors import HydraulisError, InvalidInputError

COMMANDS = (
    train,
    config,
    check,
    report,
    export,
    analyze,
    plan,
    propose,
    tune,
    simulate,
    bench,
    profile,
    pack,
)

_PROGRAM = "hydraulis"
_EPILOG = """\
exit codes:
  0    done
  1    internal error: a result failed its check; please report it
  2    an argument, a file or a batch was refused
  3    another rank was lost
  130  interrupted or terminated
  141  the reader of the output closed it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Command line without the program's name; None for that of the process.

    Returns:
        The exit code, as `hydraulis --help` lists it.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(words)
        # A flush at the interpreter's exit would raise an error that nothing can catch.
        sys.stdout.flush()
    except HydraulisError as error:
        return _report(error, words)
    except UnicodeEncodeError as error:
        # Python reads bytes of the command line that are no UTF-8 as halves of surrogate pairs.
        message = f"{error.object!r} has bytes or characters that are no UTF-8; write the command in UTF-8"
        return _report(InvalidInputError(message, code="option_invalid"), words)
    except KeyboardInterrupt:
        sys.stderr.write("hydraulis: interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter's own flush at exit would fail again.
        discard(sys.stdout)
        return EXIT_PIPE_CLOSED
    except OSError as error:
        refusal = refusal_of_output(error)
        discard(sys.stdout)
        return refuse(_PROGRAM, refusal)
    return code


def _report(error: HydraulisError, words: Sequence[str]) -> int:
    if is_rank():
        return report_before_meeting(_PROGRAM, error)
    if "--json" in words:
        document = {"error": {"code": error.code, "message": str(error)}}
        try:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
        except OSError:
            # The line on standard error and the exit code say the same.
            discard(sys.stdout)
    return refuse(_PROGRAM, error)


def _run(words: Sequence[str]) -> int:
    parsed = make_parser().parse_args(words)
    code: int = parsed.run(parsed)
    return code


def make_parser() -> argparse.ArgumentParser:
    """Declare every subcommand and its options."""
    parser = Parser(
        prog=_PROGRAM,
        description="Plans each training iteration for the lengths of its batch.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hydraulis {version('hydraulis')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
