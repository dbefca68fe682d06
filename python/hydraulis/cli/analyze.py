"""`hydraulis analyze`: the lengths of a data set, and what a static set-up would lose on them."""

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hydraulis._core import CostProfile
from hydraulis.cli.analysis_tables import print_analysis
from hydraulis.cli.contestant_table import contestant_table
from hydraulis.cli.options import cluster_of, count, figure_path
from hydraulis.cli.pack import ProgressBar
from hydraulis.cli.progress import Progress
from hydraulis.config.data import DataConfig
from hydraulis.config.run import load
from hydraulis.config.table import from_table
from hydraulis.data.analysis import Analysis, batch_imbalance, length_statistics
from hydraulis.data.open import open_sources, prepare, sampler_for
from hydraulis.data.sampler import BatchSampler
from hydraulis.errors import InvalidInputError
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.compare import Contestant, Setting, compare

_EXAMPLES = """\
examples:
  hydraulis analyze --lengths examples/lengths.txt
  hydraulis analyze examples/text.jsonl --tokens-per-batch 2000
  hydraulis analyze 'data/*.parquet' --tokenizer my-model --tokens-per-batch 200000 --figure lengths.png
  hydraulis analyze chat.jsonl --format chat --tokenizer my-model
  hydraulis analyze run.toml --profile llama-32b-a800 --gpus 64

DATA are files, globs and folders as docs/data.md lists them, or one run configuration, whose section `data`
then says everything. What was tokenised is kept, so that training on the same data starts at once.
"""
# Whole documents, unless a limit is asked for.
_NO_LIMIT = 2**31 - 1


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
        """Draw both beside the figure of the data, in a file of its name and `-compared`."""
        from hydraulis.report.comparison import comparison_figure

        title = f"{self.profile.name} on {self.gpus} GPUs"
        comparison_figure(self.contestants, title).save(figure.with_stem(f"{figure.stem}-compared"))

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", nargs="*", metavar="DATA", help="files, globs, folders, or one RUN.toml")
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="a file of lengths in place of DATA")
    parser.add_argument(
        "--format", choices=("text", "chat", "completion", "tokens"), default="text", help="(default: text)"
    )
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME", help="field of a record; may be repeated"
    )
    parser.add_argument(
        "--tokenizer", default="bytes", metavar="FILE|FOLDER", help="tokenizer.json (default: bytes)"
    )
    parser.add_argument("--chat-template", default="", metavar="FILE", help="Jinja file, or chatml")
    parser.add_argument(
        "--max-tokens", type=count, metavar="T", help="split longer documents (default: none)"
    )
    parser.add_argument(
        "--tokens-per-batch", type=count, metavar="T", help="look at batches of so many tokens"
    )
    parser.add_argument(
        "--count", type=count, default=50, metavar="N", help="batches to look at (default: 50)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the batches (default: 0)")
    parser.add_argument(
        "--replicas", type=count, default=8, metavar="R", help="deal batches out to so many (default: 8)"
    )
    parser.add_argument(
        "--profile",
        metavar="NAME|FILE",
        help=f"compare iterations on a cost profile: a preset ({', '.join(CostProfile.presets())}) or a file",
    )
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs of the cluster, with --profile")
    parser.add_argument("--gpus-per-node", type=count, metavar="N", help="(default: as in the profile)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON on one line")
    parser.add_argument(
        "--figure",
        type=figure_path,
        metavar="FILE",
        help="draw it too: a .png, .svg or .pdf; a comparison as NAME-compared",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Analyse, draw and print.

    Returns:
        0.
    """
    _check(arguments)
    lengths, targets, sampler = _read(arguments)
    batches = (
        None
        if sampler is None
        else [lengths[sampler.batch(step).documents] for step in range(arguments.count)]
    )
    data = Analysis(
        lengths=length_statistics(lengths, targets),
        batches=None if batches is None else batch_imbalance(batches, arguments.replicas),
    )
    account = Account(data=data, comparison=None if batches is None else _compare(arguments, batches))
    if arguments.figure is not None:
        # Only now: most calls draw nothing, and the command works without matplotlib.
        from hydraulis.report.data import data_figure

        data_figure(data).save(arguments.figure)
        if account.comparison is not None:
            account.comparison.save(arguments.figure)
    if arguments.json:
        sys.stdout.write(json.dumps(_document(account)) + "\n")
    else:
        print_analysis(data.lengths, data.batches, _sentence(account.comparison))
        compared = account.comparison
        if compared is not None:
            sys.stdout.write("\n" + contestant_table(compared.contestants, compared.profile))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.data) == (arguments.lengths is not None):
        message = "DATA and --lengths: give one of them, the data itself or a file of its lengths"
        raise InvalidInputError(message, code="analyze_arguments")
    if (arguments.profile is None) != (arguments.gpus is None):
        message = "--profile and --gpus: give both for a comparison, or neither"
        raise InvalidInputError(message, code="analyze_arguments")


def _read(
    arguments: argparse.Namespace,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], BatchSampler | None]:
    """Return lengths and target counts of all sequences, and what draws batches; None if none are wanted."""
    tokens_per_batch: int | None = arguments.tokens_per_batch
    if arguments.lengths is not None:
        lengths = read_lengths(arguments.lengths, arguments.field[0] if arguments.field else None)
        if tokens_per_batch is None:
            return lengths, lengths - 1, None
        return lengths, lengths - 1, BatchSampler(lengths, tokens_per_batch, arguments.seed)
    is_run = len(arguments.data) == 1 and arguments.data[0].endswith(".toml")
    config = _of_run(arguments) if is_run else _of_options(arguments)
    with ProgressBar("indexing") as bar:
        prepared = prepare(config, bar)
    train = open_sources(config, prepared).train
    wanted = is_run or tokens_per_batch is not None
    return train.lengths, train.target_counts, sampler_for(config, train, arguments.seed) if wanted else None


def _of_run(arguments: argparse.Namespace) -> DataConfig:
    config = load(arguments.data[0]).data
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
        "sources": [{"files": arguments.data, "format": arguments.format, "fields": arguments.field}],
        "tokenizer": arguments.tokenizer,
        "chat_template": arguments.chat_template,
        "max_tokens": arguments.max_tokens or _NO_LIMIT,
        "tokens_per_batch": arguments.tokens_per_batch or 1,
    }
    return from_table(DataConfig, table, "data")


def _compare(arguments: argparse.Namespace, batches: list[npt.NDArray[np.int64]]) -> Comparison | None:
    if arguments.profile is None:
        return None
    profile = load_profile(arguments.profile)
    cluster = cluster_of(arguments, profile)
    setting = Setting(profile=profile, cluster=cluster, batches=batches)
    static, search = compare(setting, ("static", "search"), Progress())
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
