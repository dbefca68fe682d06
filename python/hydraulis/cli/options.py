"""Options that several subcommands take, each declared once: so they have one name and one meaning."""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hydraulis._core import Cluster, CostProfile, LinkRates
from hydraulis.config.kinds import MemoryRule
from hydraulis.config.layered.layers import PRESETS
from hydraulis.config.planner import LINK_FROM_PROFILE, check_strategy_names
from hydraulis.planner.profile import resolve_link_rates

BATCH_OPTION = "--tokens-per-batch"
FIGURE_KINDS = (".png", ".svg", ".pdf")


def add_cluster(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare `--profile`, `--gpus` and `--gpus-per-node`."""
    parser.add_argument(
        "--profile",
        required=required,
        metavar="NAME|FILE",
        help=f"a preset ({', '.join(CostProfile.presets())}), a cost profile's JSON file, or "
        "analytic:MODEL:DEVICE[,KIND...] for one from a model's config.json and a device's data sheet, "
        "each KIND a kind of checkpointing",
    )
    add_gpus(parser, "as in the profile", required=required)


def add_gpus(parser: argparse.ArgumentParser, per_node: str, *, required: bool = True) -> None:
    """Declare `--gpus` and `--gpus-per-node`, and say what the latter is if it is left out."""
    parser.add_argument("--gpus", required=required, type=count, metavar="N", help="GPUs of the cluster")
    parser.add_argument(
        "--gpus-per-node", type=count, metavar="N", help=f"GPUs of a node (default: {per_node})"
    )


def add_run_config(parser: argparse.ArgumentParser) -> None:
    """Declare `RUN.toml`, `--preset` and `--set`: the layers of a run's configuration."""
    parser.add_argument("config", metavar="RUN.toml", help="the run's configuration")
    add_config_layers(parser)


def add_config_layers(parser: argparse.ArgumentParser) -> None:
    """Declare `--preset`, `--model` and `--set` alone."""
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"what fits a kind of machine, below the file: {', '.join(PRESETS)} (default: the file's own)",
    )
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        help="a Hugging Face model to begin from: short for --set model.path=FOLDER",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override a value of the configuration; may be repeated",
    )


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Declare `--resume`."""
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="the folder of a run to go on with, or 'latest' for the newest that the configuration names, if "
        "there is one; short for --set checkpoint.resume",
    )


def with_resume(arguments: argparse.Namespace) -> list[str]:
    """Give all overrides that were asked for, `--resume` among them."""
    if not arguments.resume:
        return overrides_of(arguments)
    resume = f"checkpoint.resume={json.dumps(arguments.resume, ensure_ascii=False)}"
    return [*overrides_of(arguments), resume]


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Give all overrides that were asked for, those of `--set` last."""
    model = (
        [f"model.path={json.dumps(arguments.model, ensure_ascii=False)}"]
        if arguments.model is not None
        else []
    )
    return model + list(arguments.set)


def cluster_of(arguments: argparse.Namespace, profile: CostProfile) -> Cluster:
    """Make the cluster that was asked for."""
    return Cluster(arguments.gpus, arguments.gpus_per_node or profile.gpus_per_node)


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Declare `--memory`."""
    parser.add_argument(
        "--memory",
        choices=get_args(MemoryRule),
        default=get_args(MemoryRule)[0],
        help="how micro-batches fit: cap, each by itself; exact, any that a pipeline holds at once, which "
        "admits longer sequences (default: cap)",
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    """Declare `--link`."""
    parser.add_argument(
        "--link",
        default=LINK_FROM_PROFILE,
        metavar="RATES",
        help="what transfers of parameters and gradients are planned by: GB/s of a node, of a GPU and "
        "microseconds of a message, the last two or one left out if usual, as in 25,200,10; profile for "
        "what it has measured, if anything; none (default: profile)",
    )


def link_rates_of(arguments: argparse.Namespace, profile: CostProfile, cluster: Cluster) -> LinkRates | None:
    """Give the rates of the links that were asked for; None without any."""
    return resolve_link_rates("--link", arguments.link, profile, cluster)


def add_lengths(parser: argparse.ArgumentParser) -> None:
    """Declare `--lengths` and `--field`."""
    add_lengths_file(parser, required=True)
    parser.add_argument("--field", metavar="NAME", help="the field of each .jsonl record")


def add_lengths_file(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare `--lengths` alone."""
    parser.add_argument(
        "--lengths",
        required=required,
        type=Path,
        metavar="FILE",
        help="the lengths in tokens (text, .npy, .jsonl)",
    )


def add_batches(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare `--tokens-per-batch`, `--count` and `--seed`: batches drawn from the lengths."""
    parser.add_argument(
        BATCH_OPTION,
        required=required,
        type=count,
        metavar="T",
        help="tokens of a global batch, at least",
    )
    parser.add_argument("--count", type=count, default=50, metavar="N", help="batches to draw (default: 50)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the batches (default: 0)")


def add_strategies(parser: argparse.ArgumentParser) -> None:
    """Declare `--strategies`, which `strategies_of` takes apart."""
    parser.add_argument(
        "--strategies",
        metavar="LIST",
        help="strategies to choose from, separated by ';', or 'search' for any (default: the profile's list, "
        "else mixes of two schemes)",
    )


def add_figure(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Declare `--figure`, and say what more it does."""
    kinds = ", ".join(FIGURE_KINDS)
    parser.add_argument(
        "--figure",
        type=PathEnding(FIGURE_KINDS, "that says what kind of picture it is"),
        metavar="FILE",
        help=f"draw it ({kinds}; needs matplotlib){also}",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare `--json`, the last option of every command."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON on one line")


def written_to(*paths: Path | None) -> str:
    """Say where files were written, a line each; None for what was not asked for."""
    return "".join(f"written to {path}\n" for path in paths if path is not None)


def json_line(account: Mapping[str, object], *paths: Path | None) -> str:
    """Give an account as `--json` prints it; its `files` are the paths of all that was written."""
    files = [str(path) for path in paths if path is not None]
    return json.dumps({**account, "files": files}, default=str) + "\n"


def strategies_of(text: str | None) -> list[str] | Literal["search"] | None:
    """Take apart what `--strategies` was given: a list, `search`, or nothing.

    Raises:
        InvalidInputError: see `check_strategy_names`.
    """
    if text is None:
        return None
    if text == "search":
        return "search"
    names = [strategy.strip() for strategy in text.split(";") if strategy.strip()]
    check_strategy_names(names)
    return names


@dataclass(frozen=True, slots=True)
class PathEnding:
    """Takes the path of a file to write, and refuses one whose name does not say what is written.

    Attributes:
        endings: of which it has one.
        why: what the ending says.
    """

    endings: tuple[str, ...]
    why: str

    def __call__(self, text: str) -> Path:
        """Take the path, as the `type` of an option.

        Raises:
            ArgumentTypeError: it ends otherwise.
        """
        path = Path(text)
        if path.suffix.lower() not in self.endings:
            message = f"{text!r} must end with {' or '.join(self.endings)}: {self.why}"
            raise argparse.ArgumentTypeError(message)
        return path


def count(text: str) -> int:
    """Take a count of at least 1 that the core's 32 bits hold, as Python and TOML write one: `200_000`."""
    digits = text.replace("_", "")
    if not (re.fullmatch(r"[0-9]+(_[0-9]+)*", text) and 1 <= int(digits[:11]) < 2**32):
        message = f"{text!r} must be a whole number from 1 to {2**32 - 1}"
        raise argparse.ArgumentTypeError(message)
    return int(digits)
