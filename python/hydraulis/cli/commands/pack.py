"""`hydraulis pack`: packs a data set into context windows, and writes the sequences of each window."""

import argparse
import sys
from pathlib import Path

import numpy as np

from hydraulis._core import Windows, pack_windows
from hydraulis.cli.options import PathEnding, add_json, add_lengths, count, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.files import write_whole_file
from hydraulis.planner import map_lengths

_EXAMPLES = """\
examples:
  hydraulis pack --lengths examples/lengths.txt --window 32768 --output windows.npz
  hydraulis pack --lengths records.jsonl --field num_tokens --window 8192 --output windows.npz --json

A lengths file is text with one length per line, a one-dimensional integer .npy array, which is memory-mapped,
or .jsonl with a field that is the length or a list of tokens. In the output, window i holds
  sequences[window_offsets[i]:window_offsets[i + 1]]
as positions in the lengths file, from 0. Windows with the longest sequences come first.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "pack",
        help="pack a data set into context windows",
        description="Pack the sequences of a data set into few windows of one length (best-fit decreasing).",
        epilog=_EXAMPLES,
    )
    add_lengths(parser)
    parser.add_argument("--window", required=True, type=count, metavar="T", help="most tokens of a window")
    parser.add_argument(
        "--output",
        required=True,
        type=PathEnding((".npz",), "the format is numpy's archive of arrays"),
        metavar="FILE.npz",
        help="the file to write",
    )
    add_json(parser, "the result")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack the sequences, write the windows, and print their number.

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
    describe = _json if arguments.json else _text
    sys.stdout.write(describe(windows, arguments.output))
    return 0


def _json(windows: Windows, output: Path) -> str:
    document = {
        "sequences": len(windows.sequences),
        "tokens": windows.tokens,
        "windows": len(windows),
        "lower_bound": windows.lower_bound,
        "window_tokens": windows.window_tokens,
        "fill": windows.fill,
    }
    return json_line(document, output)


def _text(windows: Windows, output: Path) -> str:
    return (
        f"{len(windows.sequences):,} sequences with {windows.tokens:,} tokens\n"
        f"in {len(windows):,} windows of {windows.window_tokens:,} tokens, {windows.fill:.2%} full; "
        f"at least {windows.lower_bound:,} are needed\n"
        f"{written_to(output)}"
    )
