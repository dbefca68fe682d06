"""`hydraulis analyze`: the lengths of a data set, and the loss of a static strategy on them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydraulis.cli.analysis.analyzed_data import AnalyzedData, has_batches, is_run
from hydraulis.cli.analysis.sampled_batches import SampledBatches
from hydraulis.cli.analysis.static_loss import StaticLoss
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
from hydraulis.cli.tables.comparison_table import comparison_table
from hydraulis.cli.tables.data_tables import left_out_counts, print_analysis, require_tables
from hydraulis.cli.terminal.fitted import fitted, terminal_width
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
from hydraulis.text.values import format_count

_EXAMPLES = """\
examples:
  hydraulis analyze --lengths examples/lengths.txt
  hydraulis analyze examples/text.jsonl --tokens-per-batch 2000
  hydraulis analyze 'data/*.parquet' --tokenizer my-model --tokens-per-batch 200000 --figure lengths.png
  hydraulis analyze examples/chat.jsonl --format chat --chat-template chatml
  hydraulis analyze run.toml --set data.max_tokens=4096 --profile llama-32b-a800 --gpus 64

DATA are files, globs and folders as docs/data.md lists them, or one run configuration with a section `data`.
The index of tokenised data is kept, so that training on the same data starts at once.
"""
# Default without --replicas and --gpus: the GPUs of a usual node.
_REPLICAS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the command.

    Attributes:
        documents: Counts of documents, as `Dataset.count_documents` returns them.
        data: Statistics of lengths and batches.
        loss: Comparison with a static strategy; None if not requested.
    """

    documents: Mapping[str, int]
    data: Analysis
    loss: StaticLoss | None

    def to_dict(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
        compared = None if self.loss is None else self.loss.to_dict()
        return {"documents": dict(self.documents), **self.data.to_dict(), "comparison": compared}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "analyze",
        help="analyse the lengths of a data set",
        description="Show a data set's lengths, the imbalance of its batches, and the loss of a static "
        "strategy.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("data", nargs="*", metavar="DATA", help="files, globs, folders, or one RUN.toml")
    add_config_layers(parser)
    add_lengths_file(parser, required=False)
    _add_record_options(parser)
    add_batches(parser, required=False)
    parser.add_argument(
        "--replicas",
        type=count,
        metavar="N",
        help=f"replicas to assign each batch to (default: --gpus, or {_REPLICAS} without it; fewer if half "
        "of the batches have fewer sequences)",
    )
    add_cluster(parser, required=False)
    add_memory(parser)
    add_figure(parser, "; the comparison is drawn as NAME-compared")
    add_json(parser, "the analysis")
    parser.set_defaults(run=run)


def _add_record_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME",
        help="the field of each record; may be repeated for DATA",
    )
    parser.add_argument(
        "--format",
        choices=("text", "chat", "alpaca", "completion", "tokens"),
        help="content of a record (default: text)",
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
        "--broken-records",
        choices=("refuse", "skip"),
        help="treatment of records that cannot be read (default: refuse)",
    )
    parser.add_argument(
        "--max-tokens", type=count, metavar="T", help="split longer documents (default: none)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Analyse, draw and print.

    Returns:
        0.
    """
    _check(arguments)
    figures = _figures(arguments)
    # Checked before the work.
    if not arguments.json:
        require_tables()
    if figures:
        require_matplotlib()
        check_files_writable(*figures)
    with Progress() as progress:
        result = _analyze(arguments, progress)
        if figures:
            progress(f"drawing {arguments.figure}")
            _draw(result, figures)
    if arguments.json:
        sys.stdout.write(json_line(result.to_dict(), *figures))
    else:
        _print(arguments, result)
        sys.stdout.write(written_to(*figures))
    return 0


def _analyze(arguments: argparse.Namespace, progress: Progress) -> Result:
    data = AnalyzedData.of(arguments, progress)
    lengths = compute_length_statistics(data.lengths, data.targets)
    if data.sample is None:
        return Result(documents=data.account, data=Analysis(lengths=lengths, batches=None), loss=None)
    batches = data.sample()
    analysis = Analysis(lengths=lengths, batches=_imbalance(arguments, batches))
    loss = None if arguments.profile is None else StaticLoss.of(arguments, batches, progress)
    return Result(documents=data.account, data=analysis, loss=loss)


def _figures(arguments: argparse.Namespace) -> list[Path]:
    """Return the paths of the figures: one of the data and, if requested, one of the comparison."""
    figure: Path | None = arguments.figure
    if figure is None:
        return []
    is_compared = arguments.profile is not None
    return [figure, figure.with_stem(f"{figure.stem}-compared")] if is_compared else [figure]


def _draw(result: Result, figures: Sequence[Path]) -> None:
    # Imported here: without a figure the command works without matplotlib.
    from hydraulis.report.data import data_figure

    data_figure(result.data).save(figures[0])
    if result.loss is not None:
        result.loss.save(figures[1])


def _print(arguments: argparse.Namespace, result: Result) -> None:
    loss, left_out = result.loss, left_out_counts(result.documents)
    if left_out:
        documents = format_count(result.documents["documents"], "document")
        sys.stdout.write(f"{documents} to train on; {', '.join(left_out)}\n")
    batches = result.data.batches
    why = "" if batches is None else _why_replicas(arguments, batches)
    print_analysis(result.data.lengths, batches, why, None if loss is None else str(loss))
    if loss is not None:
        sys.stdout.write("\n" + fitted(comparison_table(loss.planners, loss.profile), terminal_width()))


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.data) == (arguments.lengths is not None):
        message = "give either DATA, the data itself, or --lengths, a file of its lengths"
        raise InvalidInputError(message, code="option_invalid")
    if (arguments.profile is None) != (arguments.gpus is None):
        message = "a comparison needs both --profile and --gpus: give both or neither"
        raise InvalidInputError(message, code="option_invalid")
    if arguments.profile is not None and not has_batches(arguments):
        message = "--profile and --gpus compare batches: add --tokens-per-batch, the tokens of a batch"
        raise InvalidInputError(message, code="option_invalid")
    if (overrides_of(arguments) or arguments.preset is not None) and not is_run(arguments):
        message = "--preset, --model and --set change a configuration: give its RUN.toml as DATA"
        raise InvalidInputError(message, code="option_invalid")
    if arguments.replicas is not None and not has_batches(arguments):
        message = "--replicas assigns batches to replicas: add --tokens-per-batch, the tokens of a batch"
        raise InvalidInputError(message, code="option_invalid")
    _check_records(arguments)


def _check_records(arguments: argparse.Namespace) -> None:
    """Refuse options about records in a file of lengths, or where a configuration has them."""
    names = ["format", "tokenizer", "chat_template", "broken_records", "max_tokens"]
    given = [name for name in names if getattr(arguments, name) is not None]
    if arguments.field and is_run(arguments):
        given.append("field")
    if given and (is_run(arguments) or arguments.lengths is not None):
        option = f"--{given[0].replace('_', '-')}"
        other = "a configuration" if is_run(arguments) else "--lengths"
        message = f"{option} is for records of data files, and cannot be combined with {other}; leave it out"
        if is_run(arguments):
            of_source = given[0] in ("format", "field")
            message += f", or set data.{'sources' if of_source else given[0]} by --set or in the file"
        raise InvalidInputError(message, code="option_invalid")


def _why_replicas(arguments: argparse.Namespace, batches: BatchImbalance) -> str:
    """Return the reason for the number of replicas that `_imbalance` assigns batches to."""
    if arguments.replicas is not None:
        return "set by --replicas"
    if batches.replica_limit is not None:
        return batches.replica_limit
    return "one for each of --gpus" if arguments.gpus is not None else "the default of --replicas"


def _imbalance(arguments: argparse.Namespace, batches: SampledBatches) -> BatchImbalance:
    """Assign the batches to replicas, and measure their imbalance.

    Raises:
        InvalidInputError: Most batches have fewer sequences than `--replicas` (code `option_invalid`).
    """
    wanted: int | None = arguments.replicas
    found = compute_batch_imbalance(batches.lengths, wanted or arguments.gpus or _REPLICAS)
    if wanted is not None and found.replicas < wanted:
        message = (
            f"--replicas {wanted:,} would leave replicas empty: half of the batches have at most "
            f"{format_count(found.replicas, 'sequence')}; lower --replicas to that, or raise "
            "--tokens-per-batch"
        )
        raise InvalidInputError(message, code="option_invalid")
    return found
