"""`hydraulis bench`: the core's program `plan-bench`, which measures planners against other methods."""

import argparse

from hydraulis._core import plan_bench


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand, whose options the core's program declares and explains."""
    parser = commands.add_parser("bench", help="measure planners against other methods", passes_on=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare the planners and print the table.

    Returns:
        0, or 1 if a plan breaks a promise.
    """
    return plan_bench(["hydraulis bench", *arguments.words])
