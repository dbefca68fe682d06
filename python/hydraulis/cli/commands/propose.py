"""`hydraulis propose`: chooses a short list of strategies for a whole run, and says what it costs."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from hydraulis._core import Cluster, CostProfile, Guess, LengthHistogram, Planner, propose, propose_paper
from hydraulis.cli.commands.batches import drawn
from hydraulis.cli.options import (
    add_batches,
    add_cluster,
    add_json,
    add_lengths,
    add_memory,
    cluster_of,
    count,
)
from hydraulis.cli.terminal.progress import Progress
from hydraulis.config.kinds import MemoryRule
from hydraulis.errors import InfeasibleError, InvalidInputError
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.compare import larger_extrapolation, with_batch_number
from hydraulis.text.numbers import format_count, format_percent

_EXAMPLES = """\
examples:
  hydraulis propose --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000
  hydraulis propose --profile my-profile.json --gpus 16 --lengths lengths.npy --tokens-per-batch 100000 \\
      -k 4 --json
  hydraulis propose --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000 --method paper

The file holds the lengths of the data set, or of a good sample of it; batches are drawn from them. A search
draws more batches from the sequences of these, and weighs its list by all of them; the paper's list is
weighed by the batches alone.
"""
_MOST_STRATEGIES = 8
_TOGETHER = "  -: not known; the paper's program takes its strategies together, not one after the other"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "propose",
        help="choose a short list of strategies for a run",
        description="Draw batches, and choose the few strategies that keep their mean iteration shortest.",
        epilog=_EXAMPLES,
    )
    add_cluster(parser)
    add_lengths(parser)
    add_batches(parser)
    add_memory(parser)
    parser.add_argument(
        "-k", type=count, metavar="K", help=f"most strategies, of a search (default: {_MOST_STRATEGIES})"
    )
    parser.add_argument(
        "--context",
        type=count,
        metavar="T",
        help="the longest sequence to admit (default: that of the lengths)",
    )
    parser.add_argument(
        "--method",
        choices=("search", "paper"),
        default="search",
        help="choose among strategies found for the batches, or take all those of the Hydraulis paper's "
        "dynamic program (default: search)",
    )
    add_json(parser, "the list and its figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Propose and print.

    Returns:
        0.

    Raises:
        InvalidInputError: `-k` was given for the paper's program (code `option_invalid`).
    """
    if arguments.method == "paper" and arguments.k is not None:
        message = (
            "-k and --method paper: the paper's program returns all strategies that it finds; leave one "
            "option out"
        )
        raise InvalidInputError(message, code="option_invalid")
    profile = load_profile(arguments.profile)
    with Progress() as progress:
        data = read_lengths(arguments.lengths, arguments.field, progress)
        lengths = LengthHistogram(data)
        batches = drawn(arguments, data, progress)
        task = _Task(
            profile=profile,
            cluster=cluster_of(arguments, profile),
            lengths=lengths,
            memory=arguments.memory,
            context=arguments.context or lengths.longest,
            batches=batches.lengths,
            places=batches.places,
        )
        if arguments.method == "search":
            listed = _by_search(task, arguments.k or _MOST_STRATEGIES, progress)
        else:
            listed = _by_paper(task, progress)
    sys.stdout.write(listed.to_json() + "\n" if arguments.json else listed.explain())
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What a list is chosen for."""

    profile: CostProfile
    cluster: Cluster
    lengths: LengthHistogram
    memory: MemoryRule
    context: int
    batches: Sequence[npt.NDArray[np.int64]]
    places: Sequence[npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A strategy, its share of the batches, and the mean iteration with it and those before it."""

    strategy: str
    share: float
    expected_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """A list of strategies, and what it costs.

    Attributes:
        batches: that were drawn from the lengths.
        more_batches: that were drawn from the sequences of these; means and shares are of both.
        expected_ms: mean iteration when each batch runs under the fastest of the list.
        search_ms: mean iteration when each batch is searched for by itself.
        guess: how far plans under the list go beyond what the profile has measured, in words; None if they do
            not.
    """

    method: str
    memory: MemoryRule
    batches: int
    more_batches: int
    strategies: Sequence[_Row]
    expected_ms: float
    search_ms: float
    longest_admitted: int
    guess: str | None

    def to_json(self) -> str:
        """Return everything on one line."""
        return json.dumps(asdict(self))

    def explain(self) -> str:
        """Return a table, what the list costs, and the list as `hydraulis plan` and a run take it."""
        names = [row.strategy for row in self.strategies]
        by_cap = self.memory == "cap"
        option = "" if by_cap else f" --memory {self.memory}"
        lines = [
            f"{'':>3}{'batches':>9}{'mean ms so far':>17}{'over search':>14}  strategy",
            *(self._line(place, row) for place, row in enumerate(self.strategies, start=1)),
            *([] if self.method == "search" else [_TOGETHER]),
            "",
            f"mean iteration of {self._of_which()}: {self.expected_ms:.1f} ms, "
            f"{self._apart(self.expected_ms)} {'below' if self._is_below(self.expected_ms) else 'over'} "
            f"a search for each batch ({self.search_ms:.1f} ms)",
            f"longest admitted: {self.longest_admitted:,} tokens",
            *([] if self.guess is None else [self.guess]),
            f'for hydraulis plan: --strategies "{";".join(names)}"{option}',
            f"for a run's TOML: planner.strategies = {json.dumps(names)}",
            *([] if by_cap else [f'and, to plan by the same rule: planner.memory = "{self.memory}"']),
            "",
        ]
        return "\n".join(lines)

    def _line(self, place: int, row: _Row) -> str:
        mean = "-" if row.expected_ms is None else f"{row.expected_ms:.1f}"
        over = "-" if row.expected_ms is None else self._over(row.expected_ms)
        return f"{place:>3}{format_percent(row.share):>9}{mean:>17}{over:>14}  {row.strategy}"

    def _of_which(self) -> str:
        given = format_count(self.batches, "batch", "batches")
        return f"{given} and {self.more_batches:,} more of their sequences" if self.more_batches else given

    def _over(self, expected_ms: float) -> str:
        return f"{'-' if self._is_below(expected_ms) else '+'}{self._apart(expected_ms)}"

    def _apart(self, expected_ms: float) -> str:
        return format_percent(abs(expected_ms / self.search_ms - 1), 2)

    def _is_below(self, expected_ms: float) -> bool:
        # As they are shown: sums of the same times in another order may differ in their last bits.
        is_below = round(expected_ms, 1) < round(self.search_ms, 1)
        return is_below and self._apart(expected_ms) != format_percent(0, 2)


def _by_search(task: _Task, k: int, progress: Progress) -> _List:
    searched = 0

    def tell(step: str, done: int, of: int) -> None:
        nonlocal searched
        if step == "search":
            searched = of
        progress("searching for each batch" if step == "search" else "choosing strategies", done, of)

    proposal = propose(
        task.profile,
        task.cluster,
        task.batches,
        k,
        context=task.context,
        memory=task.memory,
        progress=tell,
    )
    return _List(
        method="search",
        memory=task.memory,
        batches=len(task.batches),
        more_batches=searched - len(task.batches),
        strategies=[_Row(one.strategy, one.share, one.expected_ms) for one in proposal.strategies],
        expected_ms=proposal.expected_ms,
        search_ms=proposal.search_ms,
        longest_admitted=proposal.longest_admitted,
        guess=_words(proposal.guess),
    )


def _by_paper(task: _Task, progress: Progress) -> _List:
    progress("choosing strategies")
    names = propose_paper(task.profile, task.cluster, task.lengths, context=task.context)
    # The paper's program knows caps alone; what its list is worth may be asked by either rule.
    listed, search = (
        Planner(task.profile, task.cluster, strategies=strategies, memory=task.memory)
        for strategies in ([one.strategy for one in names], "search")
    )
    chosen: Counter[str] = Counter()
    expected_ms = search_ms = 0.0
    guess: Guess | None = None
    for done, batch in enumerate(task.batches):
        progress("planning each batch", done, len(task.batches))
        try:
            plan = listed.plan(batch)
        except InfeasibleError as error:
            raise with_batch_number(error, done, batch, task.places[done]) from None
        chosen[plan.strategy] += 1
        guess = larger_extrapolation(guess, plan.guess)
        expected_ms += plan.iteration_ms
        search_ms += search.plan(batch).iteration_ms
    batches = len(task.batches)
    return _List(
        method="paper",
        memory=task.memory,
        batches=batches,
        more_batches=0,
        strategies=[_Row(name, chosen[name] / batches, None) for name in listed.strategies],
        expected_ms=expected_ms / batches,
        search_ms=search_ms / batches,
        longest_admitted=listed.longest_admitted,
        guess=_words(guess),
    )


def _words(guess: Guess | None) -> str | None:
    return None if guess is None else str(guess)
