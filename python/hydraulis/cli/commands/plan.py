"""`hydraulis plan`: plans one batch of lengths, and explains the plan."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydraulis._core import Plan, Planner
from hydraulis.cli.exit import EXIT_INTERNAL
from hydraulis.cli.options import (
    add_cluster,
    add_figure,
    add_json,
    add_layer_plans,
    add_layer_splits,
    add_lengths,
    add_link,
    add_memory,
    add_strategies,
    costs_of,
    links_of,
    strategies_of,
    written_to,
)
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.cli.terminal.progress import Progress
from hydraulis.errors import InfeasibleError
from hydraulis.files import check_files_writable, write_whole_file
from hydraulis.planner import read_lengths
from hydraulis.report.style import require_matplotlib
from hydraulis.report.timeline import timeline_figure
from hydraulis.runtime.records.trace import PLANNED, chrome_trace
from hydraulis.text.values import format_count

_EXAMPLES = """\
examples:
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --strategies search --prove
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --strategies search --memory in_flight
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --trace plan.json --figure plan.png
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --link 200,200,10 --figure plan.png
  hydraulis plan --profile analytic:llama-32b-a800:A100-80GB --nodes "2xA100-80GB;1xH100;4xH20" \\
      --lengths examples/lengths.txt --strategies search
  hydraulis plan --profile analytic:llama-13b-a800:A100-80GB,none,selective,full --layer-plans 3 \\
      --gpus 64 --lengths examples/lengths.txt --strategies search
  hydraulis plan --profile my-profile.json --gpus 16 --lengths lengths.npy --json > plan.json
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths records.jsonl --field num_tokens \\
      --strategies "1x<tp16>+12x<tp4>;8x<tp4,pp2>"

A lengths file is text with one length per line, a one-dimensional integer .npy array, or .jsonl with a field
that is the length or a list of tokens.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "plan",
        help="plan one batch of lengths",
        description="Plan one batch: choose its strategy, dispatch and packing, and check the result.",
        epilog=_EXAMPLES,
    )
    add_cluster(parser, nodes=True)
    add_lengths(parser)
    add_layer_plans(parser)
    add_layer_splits(parser)
    add_link(parser)
    add_strategies(parser)
    add_memory(parser)
    parser.add_argument(
        "--prove",
        action="store_true",
        help="search longer and tighten the lower bound (takes several times as long)",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the predicted timeline as a trace for Perfetto"
    )
    add_figure(parser)
    add_json(parser, "the plan")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan the batch, check the plan, and print its explanation or the plan.

    Returns:
        0; 1 if the plan fails its check, which is a defect of the planner.
    """
    if arguments.figure:
        # Checked before the work.
        require_matplotlib()
    check_files_writable(arguments.trace, arguments.figure)
    profile, cluster, node_lines = costs_of(arguments)
    links = links_of(arguments, profile, cluster)
    planner = Planner(
        profile,
        cluster,
        strategies=strategies_of(arguments.strategies),
        memory=arguments.memory,
        prove=arguments.prove,
        link=None if links is None else links.of_profile(profile),
    )
    with Progress() as progress:
        lengths = read_lengths(arguments.lengths, arguments.field, progress)
        progress(f"planning {len(lengths):,} sequences")
        with _naming_place(arguments.lengths):
            plan = planner.plan(lengths)
        violations = planner.check(plan, lengths)
        if not violations:
            _write(arguments, planner, plan, progress)
    if violations:
        sys.stderr.write(
            f"hydraulis: internal error: the plan fails {len(violations)} checks; please report it\n"
        )
        sys.stderr.writelines(f"  {violation}\n" for violation in violations)
        return EXIT_INTERNAL
    explained = node_lines + planner.explain(plan)
    text = fitted(explained, terminal_width()) + written_to(arguments.trace, arguments.figure)
    sys.stdout.write(plan.to_json() + "\n" if arguments.json else text)
    return 0


@contextmanager
def _naming_place(lengths: Path) -> Iterator[None]:
    """Say where in its file a sequence is that no strategy admits, and which option helps."""
    try:
        yield
    except InfeasibleError as error:
        if error.code != "sequence_too_long":
            raise
        message = f"{error}, or raise --gpus (sequences are counted from 0, in the order of {lengths})"
        raise InfeasibleError(message, code=error.code) from None


def _write(arguments: argparse.Namespace, planner: Planner, plan: Plan, progress: Progress) -> None:
    """Write the requested files."""
    step = planner.simulate(plan)
    timelines = {PLANNED: step.timelines}
    if arguments.trace:
        progress(f"writing {arguments.trace}")
        with write_whole_file(arguments.trace) as file:
            file.write(chrome_trace(plan, timelines, transfer_spans=step.transfer_spans).encode())
    if arguments.figure:
        progress(f"drawing {arguments.figure}")
        sequences, tokens = (
            format_count(len(plan.lengths), "sequence"),
            format_count(int(plan.lengths.sum()), "token"),
        )
        title = f"{plan.strategy}: {sequences}, {tokens}"
        timeline_figure(plan, timelines, title, step.transfer_spans).save(arguments.figure)
