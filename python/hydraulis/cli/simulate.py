"""`hydraulis simulate`: planners and strategies side by side over many iterations of a workload."""

import argparse
import json
import re
import sys
from collections.abc import Sequence

from hydraulis._core import LengthHistogram, Network
from hydraulis.cli.contestant_table import contestant_table
from hydraulis.cli.interruptible import interruptible
from hydraulis.cli.options import (
    add_batches,
    add_cluster,
    add_figure,
    add_json,
    add_lengths,
    add_strategies,
    cluster_of,
    drawn,
    strategies_of,
)
from hydraulis.cli.progress import Progress
from hydraulis.errors import InvalidInputError
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.compare import PARTS, Contestant, Setting, compare
from hydraulis.report.comparison import comparison_figure
from hydraulis.report.style import require_matplotlib

_EXAMPLES = """\
examples:
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths lengths.txt --tokens-per-batch 200000
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths lengths.txt --tokens-per-batch 200000 \\
      --compare "static;search;1x<tp16>+12x<tp4>" --slow 5=1.3 --figure comparison.png
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths lengths.txt --tokens-per-batch 200000 \\
      --token-bytes 13312 --inside-gb-per-s 200 --between-gb-per-s 100 --json

Each batch is planned by each planner, and each plan's instruction lists are simulated. No planner knows of
the slow ranks. `static` is the homogeneous strategy that is best for all batches together, kept for all of
them and balanced by the same planner; `list` chooses for each batch from --strategies, or from the profile's
list; `search` needs none. Transfers of parameters and gradients, and the optimizer, are not part of it.
`memory` is what the fullest rank of all iterations holds, of what it may.
"""
_HELD = ("reserved_bytes", "home_bytes", "held_bytes", "activation_bytes", "total_bytes")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "simulate",
        help="compare planners and strategies over many iterations",
        description="Draw batches, plan each by several planners, and simulate the iterations.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        type=_slow,
        metavar="RANK=FACTOR",
        help="a rank that takes so many times as long; may be repeated",
    )
    parser.add_argument(
        "--token-bytes",
        type=float,
        metavar="B",
        help="bytes of one token's hidden state: with the two below, messages between stages take time",
    )
    parser.add_argument(
        "--inside-gb-per-s", type=float, metavar="R", help="a rank's link inside its node, one way"
    )
    parser.add_argument(
        "--between-gb-per-s", type=float, metavar="R", help="a node's link to others, one way"
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
    profile = load_profile(arguments.profile)
    listed = strategies_of(arguments.strategies)
    names = strategies_of(arguments.compare)
    network = _network(arguments)
    with Progress() as progress:
        lengths = LengthHistogram(read_lengths(arguments.lengths, arguments.field, progress))
        setting = Setting(
            profile=profile,
            cluster=cluster_of(arguments, profile),
            batches=drawn(arguments, lengths),
            listed=[listed] if listed == "search" else listed,
            slowdowns=dict(arguments.slow),
            network=network,
        )
        planners = [names] if isinstance(names, str) else names or []
        contestants = interruptible(lambda: compare(setting, planners, progress))
        title = _title(arguments, setting)
        if arguments.figure:
            progress(f"drawing {arguments.figure}")
            comparison_figure(contestants, title).save(arguments.figure)
    sys.stdout.write(
        _json(contestants) if arguments.json else f"{title}\n\n{contestant_table(contestants, profile)}"
    )
    return 0


def _slow(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition("=")
    if re.fullmatch(r"[0-9]{1,9}", rank) and re.fullmatch(r"[0-9]*\.?[0-9]+", factor):
        return int(rank), float(factor)
    message = f"{text!r} must be a rank and how many times as long it takes, such as 5=1.3"
    raise argparse.ArgumentTypeError(message)


def _network(arguments: argparse.Namespace) -> Network | None:
    """Make the network that was asked for.

    Raises:
        InvalidInputError: it is given in part (code `network_incomplete`) or out of range (`network_value`).
    """
    given = (arguments.token_bytes, arguments.inside_gb_per_s, arguments.between_gb_per_s)
    if given == (None, None, None):
        return None
    if None in given:
        message = (
            "--token-bytes, --inside-gb-per-s and --between-gb-per-s are "
            f"{given[0]}, {given[1]} and {given[2]}: give all three, or none"
        )
        raise InvalidInputError(message, code="network_incomplete")
    return Network(token_bytes=given[0], inside_gigabytes_per_s=given[1], between_gigabytes_per_s=given[2])


def _title(arguments: argparse.Namespace, setting: Setting) -> str:
    slow = "".join(f"; rank {rank} {factor:g} times as slow" for rank, factor in setting.slowdowns.items())
    messages = "" if setting.network is None else "; messages between stages take time"
    return (
        f"{len(setting.batches)} batches of {arguments.tokens_per_batch:,} tokens (seed {arguments.seed}), "
        f"{setting.profile.name} on {setting.cluster.gpus} GPUs"
        f"{slow}{messages}"
    )


def _json(contestants: Sequence[Contestant]) -> str:
    planners = [
        {
            "planner": one.name,
            "mean_ms": one.mean_ms,
            "p50_ms": one.percentile_ms(50),
            "p99_ms": one.percentile_ms(99),
            "utilisation": one.utilisation,
            "shares": {part: one.parts_ms[part] / sum(one.parts_ms.values()) for part in PARTS},
            "memory": None if one.memory is None else {name: getattr(one.memory, name) for name in _HELD},
            "strategies": dict(one.strategies.most_common()),
            "iteration_ms": one.iteration_ms,
        }
        for one in contestants
    ]
    return json.dumps({"planners": planners}) + "\n"
