"""`hydraulis analyze`: the lengths of a data set, and what a static set-up would lose on them."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hydraulis._core import CostProfile
from hydraulis.cli.analysis_tables import print_analysis
from hydraulis.cli.batches import DrawnBatches, drawn, first_batches
from hydraulis.cli.contestant_table import contestant_table
from hydraulis.cli.options import (
    BATCH_OPTION,
    add_batches,
    add_cluster,
    add_config_layers,
    add_figure,
    add_json,
    add_lengths_file,
    add_memory,
    cluster_of,
    count,
    json_line,
    overrides_of,
    written,
)
from hydraulis.cli.progress import Progress
from hydraulis.config.data import DataConfig
from hydraulis.config.run import load_data_section
from hydraulis.config.table import from_table
from hydraulis.data.analysis import Analysis, BatchImbalance, batch_imbalance, length_statistics
from hydraulis.data.open import PreparedSource, open_sources, prepare, sampler_for
from hydraulis.errors import InvalidInputError
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.compare import Contestant, Setting, compare
from hydraulis.planner.counted import counted
from hydraulis.planner.files import check_writable
from hydraulis.report.style import require_matplotlib

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
# Whole documents, unless a limit is asked for.
_NO_LIMIT = 2**31 - 1
# Those of a node, where nothing says how many there are.
_REPLICAS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the best static strategy and the planner's own ones are predicted to take for the same batches."""

    profile: CostProfile
    gpus: int
    static: Contestant
    search: Contestant

    @property
    def contestants(self) -> tuple[Contestant, Contestant]:
        """Both of them."""
        return self.static, self.search

    def save(self, figure: Path) -> None:
        """Draw both."""
        from hydraulis.report.comparison import comparison_figure

        title = f"{self.profile.name} on {self.gpus} GPUs"
        comparison_figure(self.contestants, title).save(figure)

    @property
    def ratio(self) -> float:
        """How many times as long the static strategy takes."""
        return self.static.mean_ms / self.search.mean_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Everything that the command finds out; what was not asked for is None."""

    data: Analysis
    comparison: Comparison | None


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
    if figures:
        # Before the work, not after it.
        require_matplotlib()
        check_writable(*figures)
    with Progress() as progress:
        lengths, targets, draw = _read(arguments, progress)
        batches = None if draw is None else draw()
        data = Analysis(
            lengths=length_statistics(lengths, targets),
            batches=None if batches is None else _imbalance(arguments, batches),
        )
        comparison = None if batches is None else _compare(arguments, batches, progress)
        account = Account(data=data, comparison=comparison)
        if figures:
            progress(f"drawing {arguments.figure}")
            _draw(account, figures)
    if arguments.json:
        sys.stdout.write(json_line(_document(account), *figures))
    else:
        _print(account)
        sys.stdout.write(written(*figures))
    return 0


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
    if account.comparison is not None:
        account.comparison.save(figures[1])


def _print(account: Account) -> None:
    compared = account.comparison
    print_analysis(account.data.lengths, account.data.batches, _sentence(compared))
    if compared is not None:
        sys.stdout.write("\n" + contestant_table(compared.contestants, compared.profile))


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.data) == (arguments.lengths is not None):
        message = "DATA and --lengths: give one of them, the data itself or a file of its lengths"
        raise InvalidInputError(message, code="analyze_arguments")
    if (arguments.profile is None) != (arguments.gpus is None):
        message = "--profile and --gpus: give both for a comparison, or neither"
        raise InvalidInputError(message, code="analyze_arguments")
    if arguments.profile is not None and not _draws(arguments):
        message = (
            "--profile and --gpus compare batches: add --tokens-per-batch, which says how large these are"
        )
        raise InvalidInputError(message, code="analyze_arguments")
    if (overrides_of(arguments) or arguments.preset is not None) and not _is_run(arguments):
        message = "--preset, --model and --set are layers of a configuration: give its RUN.toml as DATA"
        raise InvalidInputError(message, code="analyze_arguments")
    if arguments.replicas is not None and not _draws(arguments):
        message = "--replicas deals batches out: add --tokens-per-batch, which says how large these are"
        raise InvalidInputError(message, code="analyze_arguments")
    _check_records(arguments)


def _check_records(arguments: argparse.Namespace) -> None:
    """Refuse options that say how records are read where something else does."""
    names = ["format", "tokenizer", "chat_template", "max_tokens"]
    given = [name for name in names if getattr(arguments, name) is not None]
    if arguments.field and _is_run(arguments):
        given.append("field")
    if given and (_is_run(arguments) or arguments.lengths is not None):
        option = f"--{given[0].replace('_', '-')}"
        says = "a configuration's section data" if _is_run(arguments) else "a file of lengths"
        message = f"{option} and {says}: {option} is of records in files of data; leave it out"
        if _is_run(arguments):
            of_source = given[0] in ("format", "field")
            message += f", or change data.{'sources' if of_source else given[0]} by --set or in the file"
        raise InvalidInputError(message, code="analyze_arguments")


def _draws(arguments: argparse.Namespace) -> bool:
    """Tell whether batches are drawn: the options say how large they are, or a run does."""
    return _is_run(arguments) or arguments.tokens_per_batch is not None


def _is_run(arguments: argparse.Namespace) -> bool:
    return len(arguments.data) == 1 and arguments.data[0].endswith(".toml")


def _read(
    arguments: argparse.Namespace, progress: Progress
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Callable[[], DrawnBatches] | None]:
    """Return lengths and target counts of all sequences, and what draws batches; None if none are wanted."""
    if arguments.lengths is not None:
        lengths = read_lengths(arguments.lengths, arguments.field[0] if arguments.field else None, progress)
        draw = partial(drawn, arguments, lengths, progress) if _draws(arguments) else None
        return lengths, lengths - 1, draw
    config = _of_run(arguments) if _is_run(arguments) else _of_options(arguments)
    train = open_sources(config, _prepared(config, progress)).train
    if not _draws(arguments):
        return train.lengths, train.target_counts, None
    sampler = sampler_for(config, train, arguments.seed)
    key = BATCH_OPTION if arguments.tokens_per_batch is not None else f"data.{config.budget_key}"
    draw = partial(first_batches, key, sampler, train.lengths, arguments.count, progress)
    return train.lengths, train.target_counts, draw


def _prepared(config: DataConfig, progress: Progress) -> list[PreparedSource]:
    """Index what is not indexed yet; an interrupt says what becomes of what was done."""
    progress("opening the data")
    try:
        prepared = prepare(config, progress.share("indexing"))
    except KeyboardInterrupt:
        with progress.aside():
            kept = f"what is indexed is kept in {config.index_directory}; the same command goes on from it\n"
            sys.stderr.write(kept)
        raise
    progress("opening the data")
    return prepared


def _of_run(arguments: argparse.Namespace) -> DataConfig:
    config = load_data_section(arguments.data[0], overrides_of(arguments), arguments.preset)
    if not config.sources:
        message = (
            f"'{arguments.data[0]}' has no data.sources, so there is nothing to read; name files instead"
        )
        raise InvalidInputError(message, code="analyze_arguments")
    if arguments.tokens_per_batch is None:
        return config
    return dataclasses.replace(config, tokens_per_batch=arguments.tokens_per_batch, sequences_per_batch=None)


def _of_options(arguments: argparse.Namespace) -> DataConfig:
    table = {
        "sources": [
            {"files": arguments.data, "format": arguments.format or "text", "fields": arguments.field}
        ],
        "tokenizer": arguments.tokenizer or "bytes",
        "chat_template": arguments.chat_template or "",
        "max_tokens": arguments.max_tokens or _NO_LIMIT,
        "tokens_per_batch": arguments.tokens_per_batch or 1,
    }
    return from_table(DataConfig, table, "data")


def _imbalance(arguments: argparse.Namespace, batches: DrawnBatches) -> BatchImbalance:
    """Deal the batches out to the replicas that are asked for, or to as many as there are GPUs.

    Raises:
        InvalidInputError: most batches have too few sequences for the replicas that are asked for (code
            `analyze_arguments`).
    """
    asked: int | None = arguments.replicas
    found = batch_imbalance(batches.lengths, asked or arguments.gpus or _REPLICAS)
    if asked is not None and found.replicas < asked:
        message = (
            f"--replicas {asked:,} would leave replicas empty: half of the batches have at most "
            f"{counted(found.replicas, 'sequence')}; give no more than that, or draw larger batches by "
            "--tokens-per-batch"
        )
        raise InvalidInputError(message, code="analyze_arguments")
    return found


def _compare(arguments: argparse.Namespace, batches: DrawnBatches, progress: Progress) -> Comparison | None:
    if arguments.profile is None:
        return None
    profile = load_profile(arguments.profile)
    cluster = cluster_of(arguments, profile)
    setting = Setting(
        profile=profile,
        cluster=cluster,
        batches=batches.lengths,
        places=batches.places,
        memory=arguments.memory,
    )
    static, search = compare(setting, ("static", "search"), progress)
    return Comparison(profile=profile, gpus=cluster.gpus, static=static, search=search)


def _sentence(comparison: Comparison | None) -> str | None:
    if comparison is None:
        return None
    return (
        f"On {comparison.profile.name} with {comparison.gpus} GPUs the best static strategy, "
        f"{comparison.static.name.removeprefix('static ')}, is predicted to take "
        f"{comparison.static.mean_ms:,.0f} ms an iteration in the mean, and a strategy for each batch "
        f"{comparison.search.mean_ms:,.0f} ms: the static one takes {comparison.ratio:.2f} times as long."
    )


def _document(account: Account) -> dict[str, object]:
    comparison = account.comparison
    return {
        **account.data.to_dict(),
        "comparison": None
        if comparison is None
        else {
            "profile": comparison.profile.name,
            "gpus": comparison.gpus,
            "static": comparison.static.name.removeprefix("static "),
            "static_ms": comparison.static.mean_ms,
            "search_ms": comparison.search.mean_ms,
            "ratio": comparison.ratio,
            "guesses": [str(one.guess) for one in comparison.contestants if one.guess],
        },
    }
