"""`hydraulis plan`: plans one batch of lengths and says what was decided and why."""

import argparse
import sys
from pathlib import Path
from typing import Literal

from hydraulis._core import Cluster, CostProfile, Planner
from hydraulis.cli.exit import EXIT_INTERNAL
from hydraulis.planner import load_profile, read_lengths

_EXAMPLES = """\
examples:
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths lengths.txt
  hydraulis plan --profile llama-32b-a800 --gpus 64 --lengths lengths.txt --strategies search
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--profile",
        required=True,
        metavar="NAME|FILE",
        help=f"a preset ({', '.join(CostProfile.presets())}) or a cost profile's JSON file",
    )
    parser.add_argument("--gpus", required=True, type=_count, metavar="N", help="GPUs of the cluster")
    parser.add_argument(
        "--gpus-per-node", type=_count, metavar="N", help="GPUs of a node (default: as in the profile)"
    )
    parser.add_argument(
        "--lengths",
        required=True,
        type=Path,
        metavar="FILE",
        help="the lengths in tokens (text, .npy, .jsonl)",
    )
    parser.add_argument("--field", metavar="NAME", help="the field of each .jsonl record")
    parser.add_argument(
        "--strategies",
        metavar="LIST",
        help="strategies to choose from, separated by ';', or 'search' for any (default: the profile's list, "
        "else mixes of two schemes)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan itself, as JSON on one line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan, check, and print the account or the plan.

    Returns:
        0, or 1 when the plan breaks one of its promises, which is a defect of the planner.
    """
    profile = load_profile(arguments.profile)
    cluster = Cluster(arguments.gpus, arguments.gpus_per_node or profile.gpus_per_node)
    planner = Planner(profile, cluster, strategies=_strategies(arguments.strategies))
    lengths = read_lengths(arguments.lengths, arguments.field)
    plan = planner.plan(lengths)
    broken = planner.check(plan, lengths)
    if broken:
        sys.stderr.write(
            f"hydraulis: internal error: the plan breaks {len(broken)} promises; please report it\n"
        )
        sys.stderr.writelines(f"  {promise}\n" for promise in broken)
        return EXIT_INTERNAL
    sys.stdout.write(plan.to_json() + "\n" if arguments.json else plan.explain())
    return 0


def _strategies(text: str | None) -> list[str] | Literal["search"] | None:
    if text is None:
        return None
    if text == "search":
        return "search"
    return [strategy.strip() for strategy in text.split(";") if strategy.strip()]


def _count(text: str) -> int:
    """Take a count of at least 1 that the core's 32 bits hold."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:11]) < 2**32):
        message = f"{text!r} must be a whole number from 1 to {2**32 - 1}"
        raise argparse.ArgumentTypeError(message)
    return int(text)
