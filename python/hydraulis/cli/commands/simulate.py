"""`hydraulis simulate`: planners and strategies side by side over many iterations of a workload."""

import argparse
import re
import sys
from collections.abc import Sequence

from hydraulis._core import Link, RankMemory, Strategy
from hydraulis.cli.commands.batches import drawn
from hydraulis.cli.options import (
    add_batches,
    add_cluster,
    add_figure,
    add_json,
    add_lengths,
    add_link,
    add_memory,
    add_strategies,
    cluster_of,
    json_line,
    link_rates_of,
    strategies_of,
    written_to,
)
from hydraulis.cli.tables.comparison_table import contestant_table
from hydraulis.cli.terminal.progress import Progress
from hydraulis.errors import InvalidInputError
from hydraulis.files import check_files_writable
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.compare import PARTS, PLANNERS, ComparisonSetup, PlannerUnderTest, compare
from hydraulis.planner.profile import resolve_link_rates, resolve_network
from hydraulis.report.comparison import comparison_figure
from hydraulis.report.style import require_matplotlib
from hydraulis.text.numbers import format_count

_EXAMPLES = """\
examples:
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000 --compare "static;search;1x<tp16>+12x<tp4>" --slow 5=1.3 \\
      --figure comparison.png
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000 --link 200,200,10 --slow-link 100 --messages --json

Each batch is planned by each planner, and each plan's instruction lists are simulated. No planner knows of
slow ranks, slow links and messages. `static` is the homogeneous strategy that is best for all batches
together, kept for all of them and balanced by the same planner; `list` chooses for each batch from
--strategies, or from the profile's list; `search` needs none. With links, transfers of parameters and
gradients are part of all times: `transfers` is what computation does not hide, `hidden` how much of them it
does. The optimizer is not part of it. `memory` is what the fullest rank of all iterations holds, of what it
may; --json has it by scheme and stage, too.
"""
_HELD = ("reserved_bytes", "home_bytes", "held_bytes", "activation_bytes", "total_bytes")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "simulate",
        help="compare planners and strategies over many iterations",
        description="Draw batches, plan each by several planners, and simulate the iterations.",
        epilog=_EXAMPLES,
    )
    add_cluster(parser)
    add_lengths(parser)
    add_batches(parser)
    parser.add_argument(
        "--compare",
        default="static;list;search",
        metavar="LIST",
        help="planners separated by ';': static, list, search, or a strategy to keep for all batches "
        "(default: static;list;search)",
    )
    add_strategies(parser)
    add_memory(parser)
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        type=_slow,
        metavar="RANK=FACTOR",
        help="a rank that takes so many times as long; may be repeated",
    )
    add_link(parser)
    parser.add_argument(
        "--slow-link",
        metavar="RATES",
        help="what the links do in fact, as --link (needed too), unknown to planners (default: as planned)",
    )
    parser.add_argument(
        "--messages",
        action="store_true",
        help="activations and their gradients take time between stages: what the profile has measured of "
        "messages if its links are asked for, else by the same links",
    )
    add_figure(parser)
    add_json(parser, "everything")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, draw.

    Returns:
        0.
    """
    if arguments.figure:
        # Before the work, not after it.
        require_matplotlib()
    check_files_writable(arguments.figure)
    planners = _planners(arguments.compare)
    with Progress() as progress:
        setting = _setting(arguments, progress)
        contestants = compare(setting, planners, progress)
        title = _title(arguments, setting)
        if arguments.figure:
            progress(f"drawing {arguments.figure}")
            comparison_figure(contestants, title).save(arguments.figure)
    sys.stdout.write(
        json_line(_document(arguments, setting, contestants), arguments.figure)
        if arguments.json
        else f"{title}\n\n{contestant_table(contestants, setting.profile)}{written_to(arguments.figure)}"
    )
    return 0


def _slow(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition("=")
    if re.fullmatch(r"[0-9]{1,9}", rank) and re.fullmatch(r"[0-9]*\.?[0-9]+", factor):
        return int(rank), float(factor)
    message = f"{text!r} must be a rank and how many times as long it takes, such as 5=1.3"
    raise argparse.ArgumentTypeError(message)


def _planners(text: str) -> list[str]:
    """Take apart what `--compare` was given.

    Raises:
        InvalidInputError: it names nothing (code `config_value`), or what is neither a planner nor a strategy
            (`strategy_invalid`).
    """
    names = strategies_of(text)
    if not names:
        message = f"--compare = '{text}' names no planner; name one, such as static, or leave it out"
        raise InvalidInputError(message, code="config_value")
    planners: list[str] = ["search"] if names == "search" else names
    for name in planners:
        try:
            if name not in PLANNERS:
                Strategy(name)
        except InvalidInputError as error:
            message = (
                f"--compare = {text!r} must be {', '.join(PLANNERS)} or strategies, separated by ';', and "
                f"{error}"
            )
            raise InvalidInputError(message, code=error.code) from None
    return planners


def _setting(arguments: argparse.Namespace, progress: Progress) -> ComparisonSetup:
    """Make what is compared under.

    Raises:
        InvalidInputError: rates are none (code `config_value`), needed and missing (`option_invalid`), or of
            a model that is not known (`profile_invalid`).
    """
    profile = load_profile(arguments.profile)
    cluster = cluster_of(arguments, profile)
    listed = strategies_of(arguments.strategies)
    planned = link_rates_of(arguments, profile, cluster)
    stated, actual = arguments.link, planned
    if arguments.slow_link is not None:
        stated = arguments.slow_link
        actual = resolve_link_rates("--slow-link", stated, profile, cluster)
    if (planned is None or actual is None) and (arguments.slow_link is not None or arguments.messages):
        field = "--link" if planned is None else "--slow-link"
        message = (
            "--slow-link and --messages need links, planned by and in fact, and there are none: state them "
            f"by {field} NODE[,GPU[,MESSAGE]], on at least 2 GPUs"
        )
        raise InvalidInputError(message, code="option_invalid")
    batches = drawn(arguments, read_lengths(arguments.lengths, arguments.field, progress), progress)
    return ComparisonSetup(
        profile=profile,
        cluster=cluster,
        batches=batches.lengths,
        places=batches.places,
        listed=[listed] if listed == "search" else listed,
        memory=arguments.memory,
        slowdowns=dict(arguments.slow),
        link=None if planned is None else Link.of_profile(profile, planned),
        actual_link=None if actual is None else Link.of_profile(profile, actual),
        network=resolve_network(stated, profile, actual)
        if arguments.messages and actual is not None
        else None,
    )


def _title(arguments: argparse.Namespace, setting: ComparisonSetup) -> str:
    slow = "".join(f"; rank {rank} {factor:g} times as slow" for rank, factor in setting.slowdowns.items())
    links = "" if setting.link is None else "; transfers by links"
    if arguments.slow_link is not None:
        unit = "GB/s of a node, of a GPU, us a message"
        links += f" of {arguments.link}, in fact of {arguments.slow_link} ({unit})"
    messages = "" if setting.network is None else "; messages between stages take time"
    memory = "" if setting.memory == "cap" else f"; {setting.memory} memory"
    batches = format_count(len(setting.batches), "batch", "batches")
    return (
        f"{batches} of {arguments.tokens_per_batch:,} tokens (seed {arguments.seed}), "
        f"{setting.profile.name} on {setting.cluster.gpus} GPUs"
        f"{memory}{slow}{links}{messages}"
    )


def _document(
    arguments: argparse.Namespace, setting: ComparisonSetup, contestants: Sequence[PlannerUnderTest]
) -> dict[str, object]:
    planners = [
        {
            "planner": one.name,
            "mean_ms": one.mean_ms,
            "p50_ms": one.percentile_ms(50),
            "p99_ms": one.percentile_ms(99),
            "utilisation": one.utilisation,
            "shares": {part: one.parts_ms[part] / sum(one.parts_ms.values()) for part in PARTS},
            "memory": None if one.memory is None else _held(one.memory),
            "stage_memory": {
                scheme: [_held(memory) for memory in stages] for scheme, stages in one.stage_memory.items()
            },
            "guess": None if one.guess is None else str(one.guess),
            "strategies": dict(one.strategies.most_common()),
            "transfers": {"transfer_ms": one.transfer_ms, "hidden_share": one.hidden_share},
            "iteration_ms": one.iteration_ms,
            "step_ms": one.step_ms,
        }
        for one in contestants
    ]
    return {
        "profile": setting.profile.name,
        "gpus": setting.cluster.gpus,
        "gpus_per_node": setting.cluster.gpus_per_node,
        "batches": len(setting.batches),
        "tokens_per_batch": arguments.tokens_per_batch,
        "seed": arguments.seed,
        "memory": setting.memory,
        "planners": planners,
    }


def _held(memory: RankMemory) -> dict[str, float]:
    return {name: getattr(memory, name) for name in _HELD}
