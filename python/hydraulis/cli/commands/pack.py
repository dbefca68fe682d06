"""`hydraulis pack`: packs a data set into windows, and writes which sequences stand together."""

import argparse
import sys
from pathlib import Path

import numpy as np

from hydraulis._core import Windows, pack_windows
from hydraulis.cli.options import PathEnding, add_json, add_lengths, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.files import write_whole_file
from hydraulis.planner import map_lengths

_EXAMPLES = """\
examples:
  hydraulis pack --lengths examples/lengths.txt --window 32768 --output windows.npz
  hydraulis pack --lengths records.jsonl --field num_tokens --window 8192 --output windows.npz --json

A lengths file is text with one length per line, a one-dimensional integer .npy array, which is mapped and not
read whole, or .jsonl with a field that is the length or a list of tokens. In the output, window i holds
  sequences[window_offsets[i]:window_offsets[i + 1]]
which are places in the lengths file, from 0. The windows with the longest sequences come first.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "pack",
        help="pack a data set into windows",
        description="Pack the sequences of a data set into few windows of one length (best-fit decreasing).",
        epilog=_EXAMPLES,
    )
    add_lengths(parser)
    parser.add_argument("--window", required=True, type=int, metavar="T", help="most tokens of a window")
    parser.add_argument(
        "--output",
        required=True,
        type=PathEnding((".npz",), "the windows are written as arrays of numpy"),
        metavar="FILE.npz",
        help="where the windows are written",
    )
    add_json(parser, "the account")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack, write, and print the account.

    Returns:
        0.
    """
    with Progress() as progress, write_whole_file(arguments.output) as file:
        lengths = map_lengths(arguments.lengths, arguments.field, progress)
        windows = pack_windows(lengths, window_tokens=arguments.window, progress=progress.share("packing"))
        progress(f"writing {arguments.output}")
        np.savez(
            file,
            sequences=windows.sequences,
            window_offsets=windows.window_offsets,
            window_tokens=windows.window_tokens,
        )
    account = _json if arguments.json else _readable
    sys.stdout.write(account(windows, arguments.output))
    return 0


def _json(windows: Windows, output: Path) -> str:
    account = {
        "sequences": len(windows.sequences),
        "tokens": windows.tokens,
        "windows": len(windows),
        "lower_bound": windows.lower_bound,
        "window_tokens": windows.window_tokens,
        "fill": windows.fill,
    }
    return json_line(account, output)


def _readable(windows: Windows, output: Path) -> str:
    return (
        f"{len(windows.sequences):,} sequences with {windows.tokens:,} tokens\n"
        f"in {len(windows):,} windows of {windows.window_tokens:,} tokens, {windows.fill:.2%} full; "
        f"at least {windows.lower_bound:,} are needed\n"
        f"{written_to(output)}"
    )
