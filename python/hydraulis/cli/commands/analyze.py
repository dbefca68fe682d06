"""`hydraulis analyze`: the lengths of a data set, and what a static set-up would lose on them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydraulis.cli.commands.analyzed_data import AnalyzedData, draws_batches, is_run
from hydraulis.cli.commands.batches import DrawnBatches
from hydraulis.cli.commands.static_loss import StaticLoss
from hydraulis.cli.options import (
    add_batches,
    add_cluster,
    add_config_layers,
    add_figure,
    add_json,
    add_lengths_file,
    add_memory,
    count,
    json_line,
    overrides_of,
    written_to,
)
from hydraulis.cli.tables.analysis_tables import print_analysis, require_tables
from hydraulis.cli.tables.comparison_table import contestant_table
from hydraulis.cli.tables.data_account import data_account
from hydraulis.cli.terminal.progress import Progress
from hydraulis.data.analysis import (
    Analysis,
    BatchImbalance,
    compute_batch_imbalance,
    compute_length_statistics,
)
from hydraulis.errors import InvalidInputError
from hydraulis.files import check_files_writable
from hydraulis.report.style import require_matplotlib
from hydraulis.text.numbers import format_count

_EXAMPLES = """\
examples:
  hydraulis analyze --lengths examples/lengths.txt
  hydraulis analyze examples/text.jsonl --tokens-per-batch 2000
  hydraulis analyze 'data/*.parquet' --tokenizer my-model --tokens-per-batch 200000 --figure lengths.png
  hydraulis analyze examples/chat.jsonl --format chat --chat-template chatml
  hydraulis analyze run.toml --set data.max_tokens=4096 --profile llama-32b-a800 --gpus 64

DATA are files, globs and folders as docs/data.md lists them, or one run configuration, whose section `data`
then says everything. What was tokenised is kept, so that training on the same data starts at once.
"""
# Those of a node, where nothing says how many there are.
_REPLICAS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Everything that the command finds out; what was not asked for is None."""

    documents: Mapping[str, int]
    data: Analysis
    loss: StaticLoss | None

    def to_dict(self) -> dict[str, object]:
        """Give it as a JSON document has it."""
        compared = None if self.loss is None else self.loss.to_dict()
        return {"documents": dict(self.documents), **self.data.to_dict(), "comparison": compared}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "analyze",
        help="look at the lengths of a data set",
        description="Show a data set's lengths, how uneven its batches are, and what a static set-up loses.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("data", nargs="*", metavar="DATA", help="files, globs, folders, or one RUN.toml")
    add_config_layers(parser)
    add_lengths_file(parser, required=False)
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME",
        help="the field of each record; may be repeated for DATA",
    )
    parser.add_argument(
        "--format",
        choices=("text", "chat", "completion", "tokens"),
        help="what a record holds (default: text)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE|FOLDER",
        help="a tokenizer.json, or a folder with one (default: bytes)",
    )
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="a Jinja file, or chatml (default: the tokenizer's)",
    )
    parser.add_argument(
        "--broken",
        choices=("refuse", "skip"),
        help="what becomes of records that cannot be read (default: refuse)",
    )
    parser.add_argument(
        "--max-tokens", type=count, metavar="T", help="split longer documents (default: none)"
    )
    add_batches(parser, required=False)
    parser.add_argument(
        "--replicas",
        type=count,
        metavar="N",
        help=f"deal batches out to so many (default: as many as --gpus says, else {_REPLICAS}; fewer where "
        "half of the batches have fewer sequences)",
    )
    add_cluster(parser, required=False)
    add_memory(parser)
    add_figure(parser, "; a comparison as NAME-compared")
    add_json(parser, "everything")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Analyse, draw and print.

    Returns:
        0.
    """
    _check(arguments)
    figures = _figures(arguments)
    # Before the work, not after it.
    if not arguments.json:
        require_tables()
    if figures:
        require_matplotlib()
        check_files_writable(*figures)
    with Progress() as progress:
        account = _account(arguments, progress)
        if figures:
            progress(f"drawing {arguments.figure}")
            _draw(account, figures)
    if arguments.json:
        sys.stdout.write(json_line(account.to_dict(), *figures))
    else:
        _print(account)
        sys.stdout.write(written_to(*figures))
    return 0


def _account(arguments: argparse.Namespace, progress: Progress) -> Account:
    data = AnalyzedData.of(arguments, progress)
    lengths = compute_length_statistics(data.lengths, data.targets)
    if data.draw is None:
        return Account(documents=data.account, data=Analysis(lengths=lengths, batches=None), loss=None)
    batches = data.draw()
    analysis = Analysis(lengths=lengths, batches=_imbalance(arguments, batches))
    loss = None if arguments.profile is None else StaticLoss.of(arguments, batches, progress)
    return Account(documents=data.account, data=analysis, loss=loss)


def _figures(arguments: argparse.Namespace) -> list[Path]:
    """Name the figures that are drawn: that of the data, and beside it that of the comparison."""
    figure: Path | None = arguments.figure
    if figure is None:
        return []
    is_compared = arguments.profile is not None
    return [figure, figure.with_stem(f"{figure.stem}-compared")] if is_compared else [figure]


def _draw(account: Account, figures: Sequence[Path]) -> None:
    # Only now: most calls draw nothing, and the command works without matplotlib.
    from hydraulis.report.data import data_figure

    data_figure(account.data).save(figures[0])
    if account.loss is not None:
        account.loss.save(figures[1])


def _print(account: Account) -> None:
    loss, told = account.loss, data_account(account.documents)
    if told:
        left = format_count(account.documents["documents"], "document")
        sys.stdout.write(f"{left} to train on; {', '.join(told)}\n")
    print_analysis(account.data.lengths, account.data.batches, None if loss is None else str(loss))
    if loss is not None:
        sys.stdout.write("\n" + contestant_table(loss.contestants, loss.profile))


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.data) == (arguments.lengths is not None):
        message = "DATA and --lengths: give one of them, the data itself or a file of its lengths"
        raise InvalidInputError(message, code="option_invalid")
    if (arguments.profile is None) != (arguments.gpus is None):
        message = "--profile and --gpus: give both for a comparison, or neither"
        raise InvalidInputError(message, code="option_invalid")
    if arguments.profile is not None and not draws_batches(arguments):
        message = "--profile and --gpus compare batches: add --tokens-per-batch, the size of a batch"
        raise InvalidInputError(message, code="option_invalid")
    if (overrides_of(arguments) or arguments.preset is not None) and not is_run(arguments):
        message = "--preset, --model and --set are layers of a configuration: give its RUN.toml as DATA"
        raise InvalidInputError(message, code="option_invalid")
    if arguments.replicas is not None and not draws_batches(arguments):
        message = "--replicas assigns batches to replicas: add --tokens-per-batch, the size of a batch"
        raise InvalidInputError(message, code="option_invalid")
    _check_records(arguments)


def _check_records(arguments: argparse.Namespace) -> None:
    """Refuse options that say how records are read where something else does."""
    names = ["format", "tokenizer", "chat_template", "broken", "max_tokens"]
    given = [name for name in names if getattr(arguments, name) is not None]
    if arguments.field and is_run(arguments):
        given.append("field")
    if given and (is_run(arguments) or arguments.lengths is not None):
        option = f"--{given[0].replace('_', '-')}"
        says = "a configuration's section data" if is_run(arguments) else "a file of lengths"
        message = f"{option} and {says}: {option} describes records of data files; leave it out"
        if is_run(arguments):
            of_source = given[0] in ("format", "field")
            message += f", or change data.{'sources' if of_source else given[0]} by --set or in the file"
        raise InvalidInputError(message, code="option_invalid")


def _imbalance(arguments: argparse.Namespace, batches: DrawnBatches) -> BatchImbalance:
    """Deal the batches out to the replicas that are asked for, or to as many as there are GPUs.

    Raises:
        InvalidInputError: most batches have too few sequences for the replicas that are asked for (code
            `option_invalid`).
    """
    asked: int | None = arguments.replicas
    found = compute_batch_imbalance(batches.lengths, asked or arguments.gpus or _REPLICAS)
    if asked is not None and found.replicas < asked:
        message = (
            f"--replicas {asked:,} would leave replicas empty: half of the batches have at most "
            f"{format_count(found.replicas, 'sequence')}; give no more than that, or draw larger batches by "
            "--tokens-per-batch"
        )
        raise InvalidInputError(message, code="option_invalid")
    return found
