"""`hydraulis report`: the report of a run, one HTML page with figures."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydraulis.cli.options import PathEnding, add_json, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.errors import InvalidInputError
from hydraulis.files import (
    check_files_writable,
    check_folder_writable,
    nearest_existing,
    unreadable_error,
    write_whole_file,
)
from hydraulis.report.page import report
from hydraulis.report.run import read_run
from hydraulis.report.style import require_matplotlib
from hydraulis.runtime.records.run_directory import REPORT, RunDirectory

_EXAMPLES = """\
examples:
  hydraulis report runs/demo
  hydraulis report runs/demo --output demo.html --png figures

The page includes its figures and needs no network. A running training can be reported too: its files are
complete after each step.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "report",
        help="write the report of a training run: an HTML page with figures",
        description="Draw the lengths, loss, strategies, balance and timeline of a run.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a training run")
    parser.add_argument(
        "--output",
        type=PathEnding((".html",), "the format is HTML"),
        metavar="FILE.html",
        help="the page to write (default: RUN/report.html)",
    )
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="folder to write each figure to as PNG")
    add_json(parser, "the run's figures in numbers")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the run, draw its figures, and write the page.

    Returns:
        0.
    """
    require_matplotlib()
    path = arguments.output or arguments.folder / REPORT
    files = [path]
    # If RUN is no folder, read_run reports that instead of the page in it. A link of RUN is replaced.
    try:
        is_own = not arguments.output and (path.is_symlink() or not arguments.folder.is_dir())
    except OSError as error:
        raise unreadable_error(arguments.folder, error) from error
    check_files_writable(None if is_own else path)
    if arguments.png:
        _check_folder(arguments.png)
    with Progress() as progress:
        trained = read_run(arguments.folder, progress)
        if arguments.png:
            _create(arguments.png)
        page, sections, numbers = report(trained, progress)
        if arguments.output:
            with write_whole_file(path) as file:
                file.write(page.encode())
        else:
            RunDirectory(arguments.folder).write(REPORT, page)
        for done, section in enumerate(sections if arguments.png else ()):
            progress("writing pictures", done, len(sections))
            files.append(arguments.png / f"{section.name}.png")
            section.drawing.save(files[-1])
    if arguments.json:
        sys.stdout.write(json_line({**numbers, "notes": trained.notes}, *files))
    else:
        sys.stdout.write("".join(f"note: {note}\n" for note in trained.notes) + written_to(*files))
    return 0


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be created or written, without creating it."""
    with _naming(folder):
        check_folder_writable(nearest_existing(folder))


def _create(folder: Path) -> None:
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"folder '{folder}' cannot be created: {error.strerror or error}; name another one"
        raise InvalidInputError(message, code="file_unwritable") from error
