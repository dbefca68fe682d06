"""`hydraulis pack`: packs a data set into windows, and writes which sequences stand together."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from hydraulis._core import Windows, pack_windows
from hydraulis.planner import map_lengths
from hydraulis.planner.files import whole_file

if TYPE_CHECKING:
    from rich.progress import Progress

_EXAMPLES = """\
examples:
  hydraulis pack lengths.npy --window 32768 --output windows.npz
  hydraulis pack records.jsonl --field num_tokens --window 8192 --output windows.npz --json

A lengths file is text with one length per line, a one-dimensional integer .npy array, which is mapped and not
read whole, or .jsonl with a field that is the length or a list of tokens. In the output, window i holds
  sequences[window_offsets[i]:window_offsets[i + 1]]
which are places in the lengths file, from 0. The windows with the longest sequences come first.
"""

# A bar that comes and goes at once is only noise.
_PATIENCE_S = 2.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "pack",
        help="pack a data set into windows",
        description="Pack the sequences of a data set into few windows of one length (best-fit decreasing).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "lengths", type=Path, metavar="LENGTHS", help="the lengths in tokens (text, .npy, .jsonl)"
    )
    parser.add_argument("--field", metavar="NAME", help="the field of each .jsonl record")
    parser.add_argument("--window", required=True, type=int, metavar="TOKENS", help="most tokens of a window")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE.npz", help="where the windows are written"
    )
    parser.add_argument("--json", action="store_true", help="print the account as JSON on one line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack, write, and print the account.

    Returns:
        0.
    """
    lengths = map_lengths(arguments.lengths, arguments.field)
    with whole_file(arguments.output) as file:
        with ProgressBar("packing") as bar:
            windows = pack_windows(lengths, window_tokens=arguments.window, progress=bar)
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
        "output": str(output),
    }
    return json.dumps(account) + "\n"


def _readable(windows: Windows, output: Path) -> str:
    return (
        f"{len(windows.sequences):,} sequences with {windows.tokens:,} tokens\n"
        f"in {len(windows):,} windows of {windows.window_tokens:,} tokens, {windows.fill:.2%} full; "
        f"at least {windows.lower_bound:,} are needed\n"
        f"written to {output}\n"
    )


class ProgressBar:
    """A bar on stderr for what takes over two seconds; none where that is no terminal, or rich is missing.

    Args:
        description: what is done, before the bar.
        clock: gives the time in seconds.
    """

    def __init__(self, description: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._description = description
        self._clock = clock
        self._start = clock()
        self._progress: Progress | None = None
        self._wanted = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, share: float) -> None:
        """Show how much is done, from 0 to 1."""
        if self._wanted and self._progress is None and self._clock() - self._start > _PATIENCE_S:
            self._open()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=share)

    def _open(self) -> None:
        try:
            # Only now: most calls end before, and the scheduler works without rich.
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            self._wanted = False
            return
        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._progress.add_task(self._description, total=1.0)
        self._progress.start()
