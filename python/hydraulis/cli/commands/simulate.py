"""`hydraulis simulate`: compares planners and strategies over many iterations of a workload."""

import argparse
import re
import sys
from collections.abc import Sequence

from hydraulis._core import RankMemory, Strategy
from hydraulis.cli.analysis.sampled_batches import sample_batches
from hydraulis.cli.options import (
    PlannedCosts,
    add_batches,
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
    json_line,
    links_of,
    strategies_of,
    written_to,
)
from hydraulis.cli.tables.comparison_table import comparison_table
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.cli.terminal.progress import Progress
from hydraulis.errors import InvalidInputError
from hydraulis.files import check_files_writable
from hydraulis.planner import read_lengths
from hydraulis.planner.compare import PARTS, PLANNERS, ComparisonSetup, PlannerUnderTest, compare
from hydraulis.planner.links import resolve_links, resolve_network
from hydraulis.report.comparison import comparison_figure
from hydraulis.report.style import require_matplotlib
from hydraulis.text.values import format_count

_EXAMPLES = """\
examples:
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000 --compare "static;search;1x<tp16>+12x<tp4>" --slow 5=1.3 \\
      --figure comparison.png
  hydraulis simulate --profile llama-32b-a800 --gpus 64 --lengths examples/lengths.txt \\
      --tokens-per-batch 200000 --link 200,200,10 --slow-link 100 --messages --json
  hydraulis simulate --profile analytic:llama-13b-a800:A100-80GB,none,selective,full --layer-plans 3 \\
      --gpus 64 --lengths examples/lengths.txt --tokens-per-batch 200000 --compare "full;uniform;search"
  hydraulis simulate --profile analytic:llama-32b-a800:A100-80GB,none,full --gpus 64 \\
      --lengths examples/lengths.txt --tokens-per-batch 200000 --link 200,200,10 \\
      --compare "full;search;sharded-parameters"

Each planner plans each batch, and the plans' instruction lists are simulated. Planners do not know of slow
ranks, slow links and messages. `static` keeps the homogeneous strategy that is best for all batches together,
with plans by the same planner; `list` chooses a strategy for each batch from --strategies or the profile's
list; `search` searches for one. `uniform` searches without layer plans and offload, `recompute` without
offload; `none`, `selective`, `full`, `offload` and `full-offload` search with that checkpointing in every
layer; `sharded-gradients` and `sharded-parameters` search with that sharding; without links their transfers
count as nothing. With links, all times include transfers of parameters and gradients: `transfers` is the
exposed part, `overlapped` the share that computation overlaps. The optimizer is not included. `memory` is
the fullest rank's share of its limit over all iterations; --json also has it by scheme and stage.
"""
_MEMORY_FIELDS = ("reserved_bytes", "optimizer_bytes", "resident_bytes", "activation_bytes", "total_bytes")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "simulate",
        help="compare planners and strategies over many iterations",
        description="Sample batches, plan each by several planners, and simulate the iterations.",
        epilog=_EXAMPLES,
    )
    add_cluster(parser, nodes=True)
    add_lengths(parser)
    add_batches(parser)
    parser.add_argument(
        "--compare",
        default="static;list;search",
        metavar="LIST",
        help="planners separated by ';': static, list, search, uniform, recompute, none, selective, full, "
        "offload, full-offload, sharded-gradients, sharded-parameters, or a strategy for all batches "
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
        help="a rank, and its time relative to other ranks; may be repeated",
    )
    add_layer_plans(parser)
    add_layer_splits(parser)
    add_link(parser)
    parser.add_argument(
        "--slow-link",
        metavar="RATES",
        help="actual link rates, as for --link (required too), unknown to planners (default: as --link)",
    )
    parser.add_argument(
        "--messages",
        action="store_true",
        help="simulate the time of activations and their gradients between stages, by the profile's measured "
        "messages with --link profile, by the links otherwise",
    )
    add_figure(parser)
    add_json(parser, "all results")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare the planners, print the table, and draw the figure.

    Returns:
        0.
    """
    if arguments.figure:
        # Checked before the work.
        require_matplotlib()
    check_files_writable(arguments.figure)
    planners = _planners(arguments.compare)
    costs = costs_of(arguments)
    with Progress() as progress:
        setting = _setting(arguments, costs, progress)
        results = compare(setting, planners, progress)
        title = _title(arguments, setting)
        if arguments.figure:
            progress(f"drawing {arguments.figure}")
            comparison_figure(results, title).save(arguments.figure)
    if arguments.json:
        sys.stdout.write(json_line(_document(arguments, setting, results), arguments.figure))
        return 0
    table = comparison_table(results, setting.profile)
    text = fitted(f"{title}\n{costs.node_lines}\n{table}", terminal_width())
    sys.stdout.write(text + written_to(arguments.figure))
    return 0


def _slow(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition("=")
    if re.fullmatch(r"[0-9]{1,9}", rank) and re.fullmatch(r"[0-9]*\.?[0-9]+", factor):
        return int(rank), float(factor)
    message = f"{text!r} must be a rank and its relative time, such as 5=1.3"
    raise argparse.ArgumentTypeError(message)


def _planners(text: str) -> list[str]:
    """Parse the value of `--compare`.

    Raises:
        InvalidInputError: It is empty (code `config_value`), or a name is neither a planner nor a strategy
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


def _setting(arguments: argparse.Namespace, costs: PlannedCosts, progress: Progress) -> ComparisonSetup:
    """Build the setting of the comparison.

    Raises:
        InvalidInputError: Link rates are malformed (code `config_value`), required and missing
            (`option_invalid`), or need the shape of a model that the profile lacks (`profile_invalid`).
    """
    profile, cluster, _ = costs
    listed = strategies_of(arguments.strategies)
    planned = links_of(arguments, profile, cluster)
    actual_rates, actual = arguments.link, planned
    if arguments.slow_link is not None:
        actual_rates = arguments.slow_link
        actual = resolve_links("--slow-link", actual_rates, profile, cluster)
    if (planned is None or actual is None) and (arguments.slow_link is not None or arguments.messages):
        field = "--link" if planned is None else "--slow-link"
        message = (
            "--slow-link and --messages need link rates, and there are none: set "
            f"{field} NODE[,GPU[,MESSAGE]], with at least 2 GPUs"
        )
        raise InvalidInputError(message, code="option_invalid")
    batches = sample_batches(arguments, read_lengths(arguments.lengths, arguments.field, progress), progress)
    return ComparisonSetup(
        profile=profile,
        cluster=cluster,
        batches=batches.lengths,
        places=batches.places,
        listed=[listed] if listed == "search" else listed,
        memory=arguments.memory,
        slowdowns=_slowdowns(arguments.slow),
        link=None if planned is None else planned.of_profile(profile),
        actual_link=None if actual is None else actual.of_profile(profile),
        network=resolve_network(actual_rates, profile, actual)
        if arguments.messages and actual is not None
        else None,
    )


def _slowdowns(slow: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Return the relative time of each rank that `--slow` names."""
    slowdowns: dict[int, float] = {}
    for rank, factor in slow:
        if slowdowns.setdefault(rank, factor) != factor:
            message = f"--slow says both {slowdowns[rank]:g} and {factor:g} for rank {rank}: give one of them"
            raise InvalidInputError(message, code="option_invalid")
    return slowdowns


def _title(arguments: argparse.Namespace, setting: ComparisonSetup) -> str:
    slow = "".join(f"; rank {rank} {factor:g} times as slow" for rank, factor in setting.slowdowns.items())
    links = "" if setting.link is None else "; transfers by links"
    if arguments.slow_link is not None:
        unit = "GB/s of a node, of a GPU, us of a message"
        links += f" of {arguments.link}, actual links {arguments.slow_link} ({unit})"
    messages = "" if setting.network is None else "; messages between stages take time"
    memory = "" if setting.memory == "per_micro_batch" else f"; {setting.memory} memory"
    batches = format_count(len(setting.batches), "batch", "batches")
    return (
        f"{batches} of {arguments.tokens_per_batch:,} tokens (seed {arguments.seed}), "
        f"{setting.profile.name} on {setting.cluster.gpus} GPUs"
        f"{memory}{slow}{links}{messages}"
    )


def _document(
    arguments: argparse.Namespace, setting: ComparisonSetup, results: Sequence[PlannerUnderTest]
) -> dict[str, object]:
    planners = [
        {
            "planner": one.name,
            "mean_ms": one.mean_ms,
            "p50_ms": one.percentile_ms(50),
            "p99_ms": one.percentile_ms(99),
            "utilisation": one.utilisation,
            "needed_share": one.needed_share,
            "shares": {part: one.share(part) for part in PARTS},
            "memory": None if one.memory is None else _memory(one.memory),
            "stage_memory": {
                scheme: [_memory(memory) for memory in stages] for scheme, stages in one.stage_memory.items()
            },
            "extrapolation": None if one.extrapolation is None else str(one.extrapolation),
            "strategies": dict(one.strategies.most_common()),
            "transfers": {"transfer_ms": one.transfer_ms, "overlapped_share": one.overlapped_share},
            "iteration_ms": one.iteration_ms,
            "step_ms": one.step_ms,
        }
        for one in results
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


def _memory(memory: RankMemory) -> dict[str, float]:
    return {name: getattr(memory, name) for name in _MEMORY_FIELDS}
