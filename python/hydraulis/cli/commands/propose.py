"""`hydraulis propose`: chooses a short list of strategies for a run, and predicts its mean iteration."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from hydraulis._core import Cluster, CostProfile, LengthHistogram, propose
from hydraulis.cli.analysis.sampled_batches import sample_batches
from hydraulis.cli.options import (
    add_batches,
    add_cluster,
    add_json,
    add_lengths,
    add_memory,
    cluster_of,
    count,
)
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.cli.terminal.progress import Progress
from hydraulis.config.kinds import MemoryRule
from hydraulis.planner import load_profile, read_lengths
from hydraulis.text.values import format_count, format_percent

_EXAMPLES = """\
examples:
  hydraulis propose --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000
  hydraulis propose --profile my-profile.json --gpus 16 --lengths lengths.npy --tokens-per-batch 100000 \\
      -k 4 --json

The file has the lengths of the data set, or of a representative sample; batches are sampled from them. The
search resamples further batches from the sequences of these, and evaluates its list on all of them.
"""
_MOST_STRATEGIES = 8


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "propose",
        help="choose a short list of strategies for a run",
        description="Sample batches, and choose the few strategies with their shortest mean iteration.",
        epilog=_EXAMPLES,
    )
    add_cluster(parser)
    add_lengths(parser)
    add_batches(parser)
    add_memory(parser)
    parser.add_argument("-k", type=count, metavar="K", help=f"most strategies (default: {_MOST_STRATEGIES})")
    parser.add_argument(
        "--context",
        type=count,
        metavar="T",
        help="longest sequence to admit (default: that of the lengths)",
    )
    add_json(parser, "the list and its predictions")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Choose the list and print it.

    Returns:
        0.
    """
    profile = load_profile(arguments.profile)
    with Progress() as progress:
        data = read_lengths(arguments.lengths, arguments.field, progress)
        lengths = LengthHistogram(data)
        batches = sample_batches(arguments, data, progress)
        task = _Task(
            profile=profile,
            cluster=cluster_of(arguments, profile),
            memory=arguments.memory,
            context=arguments.context or lengths.longest,
            batches=batches.lengths,
        )
        listed = _by_search(task, arguments.k or _MOST_STRATEGIES, progress)
    sys.stdout.write(
        listed.to_json() + "\n" if arguments.json else fitted(listed.explain(), terminal_width())
    )
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The workload that a list is chosen for; see `ComparisonSetup`."""

    profile: CostProfile
    cluster: Cluster
    memory: MemoryRule
    context: int
    batches: Sequence[npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A strategy of the list.

    Attributes:
        strategy: Name of the strategy.
        share: Share of the batches that run under it, from 0 to 1.
        expected_ms: Mean iteration with this strategy and those before it.
    """

    strategy: str
    share: float
    expected_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """A list of strategies, and its predicted times.

    Attributes:
        memory: Memory limit of the plans.
        batches: Number of batches sampled from the lengths.
        resampled_batches: Number of batches resampled from their sequences; means and shares include both.
        strategies: Strategies of the list.
        expected_ms: Mean iteration when each batch runs under the fastest strategy of the list.
        search_ms: Mean iteration when each batch has a search of its own.
        longest_admitted: Tokens of the longest sequence that a strategy of the list admits.
        extrapolation: Extrapolation of the profile by plans under the list, in words; None without any.
    """

    memory: MemoryRule
    batches: int
    resampled_batches: int
    strategies: Sequence[_Row]
    expected_ms: float
    search_ms: float
    longest_admitted: int
    extrapolation: str | None

    def to_json(self) -> str:
        """Return the list as JSON on one line."""
        return json.dumps(asdict(self))

    def explain(self) -> str:
        """Return a table, the predicted times, and the list as options of `hydraulis plan` and of a run."""
        names = [row.strategy for row in self.strategies]
        is_default = self.memory == "per_micro_batch"
        option = "" if is_default else f" --memory {self.memory}"
        lines = [
            f"{'':>3}{'batches':>9}{'mean ms so far':>17}{'over search':>14}  strategy",
            *(self._line(place, row) for place, row in enumerate(self.strategies, start=1)),
            "",
            f"mean iteration of {self._describe_batches()}: {self.expected_ms:.1f} ms, "
            f"{self._distance(self.expected_ms)} {'below' if self._is_below(self.expected_ms) else 'over'} "
            f"a search for each batch ({self.search_ms:.1f} ms)",
            f"longest admitted: {self.longest_admitted:,} tokens",
            *([] if self.extrapolation is None else [self.extrapolation]),
            f'for hydraulis plan: --strategies "{";".join(names)}"{option}',
            f"for a run's TOML: planner.strategies = {json.dumps(names)}",
            *([] if is_default else [f'and, for the same memory limit: planner.memory = "{self.memory}"']),
            "",
        ]
        return "\n".join(lines)

    def _line(self, place: int, row: _Row) -> str:
        mean = f"{row.expected_ms:.1f}"
        over = self._over(row.expected_ms)
        return f"{place:>3}{format_percent(row.share):>9}{mean:>17}{over:>14}  {row.strategy}"

    def _describe_batches(self) -> str:
        sampled = format_count(self.batches, "batch", "batches")
        resampled = f" and {self.resampled_batches:,} resampled from them" if self.resampled_batches else ""
        return f"{sampled}{resampled}"

    def _over(self, expected_ms: float) -> str:
        return f"{'-' if self._is_below(expected_ms) else '+'}{self._distance(expected_ms)}"

    def _distance(self, expected_ms: float) -> str:
        return format_percent(abs(expected_ms / self.search_ms - 1), 2)

    def _is_below(self, expected_ms: float) -> bool:
        # Compared as displayed: sums of the same times in another order may differ in their last bits.
        is_below = round(expected_ms, 1) < round(self.search_ms, 1)
        return is_below and self._distance(expected_ms) != format_percent(0, 2)


def _by_search(task: _Task, k: int, progress: Progress) -> _List:
    searched = 0

    def report(step: str, done: int, total: int) -> None:
        nonlocal searched
        if step == "search":
            searched = total
        progress("searching for each batch" if step == "search" else "choosing strategies", done, total)

    proposal = propose(
        task.profile,
        task.cluster,
        task.batches,
        k,
        context=task.context,
        memory=task.memory,
        progress=report,
    )
    return _List(
        memory=task.memory,
        batches=len(task.batches),
        resampled_batches=searched - len(task.batches),
        strategies=[_Row(one.strategy, one.share, one.expected_ms) for one in proposal.strategies],
        expected_ms=proposal.expected_ms,
        search_ms=proposal.search_ms,
        longest_admitted=proposal.longest_admitted,
        extrapolation=None if proposal.extrapolation is None else str(proposal.extrapolation),
    )
