"""`hydraulis report`: a run's folder as one HTML page with figures."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydraulis.cli.options import PathEnding, add_json, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.errors import InvalidInputError
from hydraulis.files import check_files_writable, check_folder_writable, nearest_existing, write_whole_file
from hydraulis.report.page import report
from hydraulis.report.run import read_run
from hydraulis.report.style import require_matplotlib
from hydraulis.runtime.records.run_directory import REPORT

_EXAMPLES = """\
examples:
  hydraulis report runs/demo
  hydraulis report runs/demo --output demo.html --png figures

The page holds all it shows: it can be sent, kept, and opened without a network. A run that is under way can
be reported too; its files are whole at any time.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "report",
        help="write a training run's report: an HTML page with figures",
        description="Draw what a run's folder holds: lengths, loss, strategies, balance, a timeline.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a training run")
    parser.add_argument(
        "--output",
        type=PathEnding((".html",), "the page is HTML"),
        metavar="FILE.html",
        help="where the page is written (default: RUN/report.html)",
    )
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write each figure there as a PNG too")
    add_json(parser, "the run's numbers")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, draw, write.

    Returns:
        0.
    """
    require_matplotlib()
    path = arguments.output or arguments.folder / REPORT
    files = [path]
    # Without a run's folder it is not the page beside the run that is wrong.
    check_files_writable(path if arguments.output or arguments.folder.is_dir() else None)
    if arguments.png:
        _check_folder(arguments.png)
    with Progress() as progress:
        found = read_run(arguments.folder, progress)
        if arguments.png:
            _make(arguments.png)
        with write_whole_file(path) as file:
            page, sections, numbers = report(found, progress)
            file.write(page.encode())
        for done, section in enumerate(sections if arguments.png else ()):
            progress("writing pictures", done, len(sections))
            files.append(arguments.png / f"{section.name}.png")
            section.drawing.save(files[-1])
    if arguments.json:
        sys.stdout.write(json_line(numbers, *files))
    else:
        sys.stdout.write(written_to(*files))
    return 0


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, without making it."""
    with _named(folder):
        check_folder_writable(nearest_existing(folder))


def _make(folder: Path) -> None:
    with _named(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"folder '{folder}' cannot be made: {error.strerror or error}; name another one"
        raise InvalidInputError(message, code="file_unwritable") from error
