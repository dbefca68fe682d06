"""`hydraulis tune`: finds the best plan for sequences of one length."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import get_args

from hydraulis._core import Cluster, CostProfile, Link, Planner
from hydraulis.cli.options import (
    add_cluster,
    add_json,
    add_link,
    add_memory,
    cluster_of,
    count,
    json_line,
    links_of,
)
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.cli.terminal.progress import Progress
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile
from hydraulis.planner.tune import TunedPlan, tune
from hydraulis.text.values import format_count

_EXAMPLES = """\
examples:
  hydraulis tune --profile llama-32b-a800 --gpus 64 --length 8192 --batch 64 128 256
  hydraulis tune --profile analytic:llama-7b-a800:A100-40GB --gpus 8 --length 4096 --batch 64
  hydraulis tune --profile analytic:llama-13b-a800:H100 --gpus 64 --length 32768 --batch 128 \\
      --memory-gib 60 --link 200,200,10 --json

All replicas of the plan have the same scheme. An analytic profile without kinds has all kinds of
checkpointing here, and any two kinds may share the layers, as in <tp4,full:12/40>. Of several batches the
one with the most tokens per second is the best.
"""
_GIB = 1 << 30


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "tune",
        help="find the best plan for sequences of one length",
        description="Choose degrees, checkpointing, micro-batches and global batch for one length.",
        epilog=_EXAMPLES,
    )
    add_cluster(parser)
    parser.add_argument("--length", type=count, required=True, metavar="T", help="tokens of each sequence")
    parser.add_argument(
        "--batch",
        type=count,
        required=True,
        nargs="+",
        metavar="N",
        help="sequences of the global batch; several for a choice among them",
    )
    parser.add_argument(
        "--memory-gib",
        type=count,
        metavar="G",
        help="GiB of each GPU that a plan may use (default, and at most: all)",
    )
    add_link(parser)
    add_memory(parser)
    add_json(parser, "the plans")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Find the fastest plan for each global batch and print them.

    Returns:
        0.
    """
    name = _with_every_kind(arguments.profile)
    profile = load_profile(name)
    cluster = _with_memory(cluster_of(arguments, profile), profile, arguments.memory_gib)
    links = links_of(arguments, profile, cluster)
    with Progress() as progress:
        progress(f"tuning for {arguments.length:,} tokens")
        plans = _tune(arguments, profile, cluster, None if links is None else links.of_profile(profile))
    best = max(plans, key=lambda plan: plan.tokens_per_s)
    if arguments.json:
        documents = [_document(plan) for plan in plans]
        sys.stdout.write(json_line({"plans": documents, "best": plans.index(best)}))
    else:
        sys.stdout.write(fitted(_explain(plans, best, name), terminal_width()))
    return 0


def _tune(
    arguments: argparse.Namespace, profile: CostProfile, cluster: Cluster, link: Link | None
) -> list[TunedPlan]:
    """Tune, and refuse a length that no scheme admits by its option."""
    memory = arguments.memory
    try:
        return tune(profile, cluster, arguments.length, arguments.batch, memory=memory, link=link)
    except InfeasibleError as error:
        if error.code == "scheme_too_large" and arguments.memory_gib is not None:
            message = f"--memory-gib {arguments.memory_gib}: {error}"
            raise InfeasibleError(message, code=error.code) from None
        if error.code != "sequence_too_long":
            raise
        longest = Planner(profile, cluster, strategies="search", memory=memory).longest_admitted
        message = (
            f"--length {arguments.length}: at most {longest:,} tokens fit: lower --length, or raise --gpus"
        )
        raise InfeasibleError(message, code=error.code) from None


def _with_every_kind(profile: str) -> str:
    """Return an analytic profile's name with all kinds of recomputation, unless it names some."""
    is_plain = profile.startswith("analytic:") and "," not in profile.rpartition(":")[2]
    kinds = [kind for kind in get_args(CheckpointingKind) if "offload" not in kind]
    return ",".join([profile, *kinds]) if is_plain else profile


def _with_memory(cluster: Cluster, profile: CostProfile, gib: int | None) -> Cluster:
    """Return the cluster with at most this much memory on each GPU, and no more than the profile's."""
    if gib is None or gib * _GIB >= profile.memory_bytes:
        return cluster
    return Cluster(cluster.gpus, cluster.gpus_per_node, memory_bytes=[gib * _GIB] * cluster.gpus)


def _micro_batches(tuned: TunedPlan) -> list[int]:
    """Return the sequences of each micro-batch of the replica with the most sequences, the largest first."""
    replicas = [[len(own) for own in replica.micro_batches] for replica in tuned.plan.replicas]
    return sorted(max(replicas, key=sum), reverse=True)


def _document(tuned: TunedPlan) -> dict[str, object]:
    plan = tuned.plan
    return {
        "global_batch": tuned.sequences,
        "length": tuned.length,
        "strategy": plan.strategy,
        "micro_batches": _micro_batches(tuned),
        "stage_layers": tuned.stage_layers,
        "step_ms": plan.step_ms,
        "tokens_per_s": tuned.tokens_per_s,
        "extrapolation": None if plan.extrapolation is None else str(plan.extrapolation),
    }


def _explain(plans: Sequence[TunedPlan], best: TunedPlan, profile: str) -> str:
    lines = [
        f"{'sequences':>9}{'step ms':>13}{'tokens/s':>13}  strategy, micro-batches of the fullest replica",
        *(_line(tuned) for tuned in plans),
        "",
        f"best: {format_count(best.sequences, 'sequence')} in {best.plan.step_ms:,.1f} ms, "
        f"{best.tokens_per_s:,.0f} tokens per second",
    ]
    if best.stage_layers is not None:
        lines.append(f"layers of the stages: {', '.join(map(str, best.stage_layers))}")
    if best.plan.extrapolation is not None:
        lines.append(str(best.plan.extrapolation))
    return "\n".join([*lines, *_settings(best, profile), ""])


def _line(tuned: TunedPlan) -> str:
    numbers = Counter(_micro_batches(tuned)).items()
    sizes = " + ".join(f"{number} of {format_count(sequences, 'sequence')}" for sequences, number in numbers)
    return (
        f"{tuned.sequences:>9,}{tuned.plan.step_ms:>13,.1f}{tuned.tokens_per_s:>13,.0f}  "
        f"{tuned.plan.strategy}: {sizes}"
    )


def _settings(best: TunedPlan, profile: str) -> list[str]:
    """Return the options of `hydraulis plan` and the settings of a run with the best plan."""
    strategies = json.dumps([best.plan.strategy])
    is_default = best.plan.memory == "per_micro_batch"
    option = "" if is_default else f" --memory {best.plan.memory}"
    return [
        f'for hydraulis plan: --profile {profile} --strategies "{best.plan.strategy}"{option}',
        f"for a run's TOML: planner.strategies = {strategies}",
        f"and: data.tokens_per_batch = {best.sequences * best.length}",
        *([] if is_default else [f'and, for the same memory limit: planner.memory = "{best.plan.memory}"']),
    ]
