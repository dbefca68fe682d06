"""`hydraulis pack`: packs a data set into context windows, and writes the sequences of each window."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydraulis._core import Windows, pack_windows
from hydraulis.batching.items.length_index import INDEX_SUFFIX, write_length_index
from hydraulis.batching.items.lengths import open_lengths
from hydraulis.cli.options import PathEnding, add_json, add_lengths, count, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.files import write_whole_file
from hydraulis.planner import map_lengths

# Formats that the sampler opens and other commands do not.
_OPENED = (".parquet", ".arrow", ".idx", INDEX_SUFFIX)

_EXAMPLES = """\
examples:
  hydraulis pack --lengths examples/lengths.txt --window 32768 --output windows.npz
  hydraulis pack --lengths records.jsonl --field num_tokens --window 8192 --output windows.npz --json
  hydraulis pack --lengths train.parquet --field input_ids --window 8192 --output train.index

A lengths file is text with one length per line, a one-dimensional integer .npy array or Megatron's .idx,
which are memory-mapped, or .jsonl, .parquet or .arrow with a field that is the length or a list of tokens. In
the output, window i holds
  sequences[window_offsets[i]:window_offsets[i + 1]]
as positions in the lengths file, from 0. Windows with the longest sequences come first. An output
FOLDER.index has each array in a file that is mapped, and the lengths: BalancedBatchSampler takes its path.
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
        type=PathEnding((".npz", INDEX_SUFFIX), "numpy's archive of arrays, or a folder of mapped arrays"),
        metavar="FILE.npz|FOLDER.index",
        help="the file or folder to write",
    )
    add_json(parser, "the result")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack the sequences, write the windows, and print their number.

    Returns:
        0.
    """
    with Progress() as progress:
        if arguments.output.suffix.lower() == INDEX_SUFFIX:
            lengths, windows = _pack(arguments, progress)
            progress(f"writing {arguments.output}")
            write_length_index(arguments.output, arguments.lengths, lengths, windows)
        else:
            with write_whole_file(arguments.output) as file:
                windows = _pack(arguments, progress)[1]
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


def _pack(arguments: argparse.Namespace, progress: Progress) -> tuple[NDArray[np.integer[Any]], Windows]:
    if arguments.lengths.suffix in _OPENED:
        progress(f"reading {arguments.lengths.name}")
        lengths = open_lengths(arguments.lengths, arguments.field)
    else:
        lengths = map_lengths(arguments.lengths, arguments.field, progress)
    share = progress.share("packing")
    return lengths, pack_windows(lengths, window_tokens=arguments.window, progress=share)


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
