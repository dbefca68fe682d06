"""Options that several subcommands take: a cost profile on a cluster, and a file of lengths."""

import argparse
from pathlib import Path

from hydraulis._core import Cluster, CostProfile


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Declare `--profile`, `--gpus` and `--gpus-per-node`."""
    parser.add_argument(
        "--profile",
        required=True,
        metavar="NAME|FILE",
        help=f"a preset ({', '.join(CostProfile.presets())}), a cost profile's JSON file, or "
        "analytic:MODEL:DEVICE for one from a model's config.json and a device's data sheet",
    )
    parser.add_argument("--gpus", required=True, type=count, metavar="N", help="GPUs of the cluster")
    parser.add_argument(
        "--gpus-per-node", type=count, metavar="N", help="GPUs of a node (default: as in the profile)"
    )


def cluster_of(arguments: argparse.Namespace, profile: CostProfile) -> Cluster:
    """Make the cluster that was asked for."""
    return Cluster(arguments.gpus, arguments.gpus_per_node or profile.gpus_per_node)


def add_lengths(parser: argparse.ArgumentParser) -> None:
    """Declare `--lengths` and `--field`."""
    parser.add_argument(
        "--lengths",
        required=True,
        type=Path,
        metavar="FILE",
        help="the lengths in tokens (text, .npy, .jsonl)",
    )
    parser.add_argument("--field", metavar="NAME", help="the field of each .jsonl record")


def count(text: str) -> int:
    """Take a count of at least 1 that the core's 32 bits hold."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:11]) < 2**32):
        message = f"{text!r} must be a whole number from 1 to {2**32 - 1}"
        raise argparse.ArgumentTypeError(message)
    return int(text)
