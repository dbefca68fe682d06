"""Options shared by several subcommands, each declared once with one name and one meaning."""

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from hydraulis._core import Cluster, CostProfile
from hydraulis.config.kinds import MemoryRule
from hydraulis.config.layered.layers import PRESETS
from hydraulis.config.planner import LINK_FROM_PROFILE, check_strategy_names
from hydraulis.errors import InvalidInputError
from hydraulis.planner.links import ClusterLinks, resolve_links
from hydraulis.planner.models import MODELS
from hydraulis.planner.nodes import describe_nodes, mix_nodes, parse_nodes
from hydraulis.planner.profile import load_profile
from hydraulis.text.values import escape_unprintable

BATCH_OPTION = "--tokens-per-batch"
_NODES = "--nodes"
FIGURE_KINDS = (".png", ".svg", ".pdf")


def add_cluster(parser: argparse.ArgumentParser, *, required: bool = True, nodes: bool = False) -> None:
    """Declare `--profile`, `--gpus` and `--gpus-per-node`, and `--nodes` in place of `--gpus` on request."""
    parser.add_argument(
        "--profile",
        required=required,
        metavar="NAME|FILE",
        help=f"a preset ({', '.join(CostProfile.presets())}), a cost profile's JSON file, each with ,cp "
        "for derived context degrees, or analytic:MODEL:DEVICE[,KIND...] for one computed from a model's "
        f"shape ({', '.join(MODELS)}, a preset or a config.json) and a device's data sheet, each KIND a kind "
        "of activation checkpointing",
    )
    add_gpus(parser, "as in the profile", required=required and not nodes)
    if nodes:
        parser.add_argument(
            _NODES,
            metavar="LIST",
            help="in place of --gpus, nodes of several kinds in the order of ranks: COUNTxKIND;COUNTxKIND, "
            "each KIND a cost profile, or with --profile analytic:MODEL:DEVICE another DEVICE, as in "
            "'4xA100-80GB;2xH100'",
        )


def add_gpus(parser: argparse.ArgumentParser, per_node: str, *, required: bool = True) -> None:
    """Declare `--gpus` and `--gpus-per-node`.

    Args:
        parser: Parser of the subcommand.
        per_node: Default of `--gpus-per-node`, in words.
        required: Whether `--gpus` is required.
    """
    parser.add_argument("--gpus", required=required, type=count, metavar="N", help="GPUs of the cluster")
    parser.add_argument(
        "--gpus-per-node", type=count, metavar="N", help=f"GPUs of a node (default: {per_node})"
    )


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Declare `--ranks`."""
    parser.add_argument(
        "--ranks", type=count, metavar="N", help="number of ranks to start here (not under torchrun)"
    )


def add_run_config(parser: argparse.ArgumentParser) -> None:
    """Declare `RUN.toml`, `--preset` and `--set`: the layers of a run's configuration."""
    parser.add_argument("config", metavar="RUN.toml", help="the run's configuration")
    add_config_layers(parser)


def add_config_layers(parser: argparse.ArgumentParser) -> None:
    """Declare `--preset`, `--model` and `--set`."""
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"defaults for a kind of machine, which the file overrides: {', '.join(PRESETS)} (default: the "
        "file's own)",
    )
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        help="a Hugging Face model to start from: short for --set model.path=FOLDER",
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
        help="the folder of a run to resume, or 'latest' for the newest one of output.directory, if any; "
        "short for --set checkpoint.resume",
    )


def with_resume(arguments: argparse.Namespace) -> list[str]:
    """Return the overrides of `--model`, `--set` and `--resume`."""
    if not arguments.resume:
        return overrides_of(arguments)
    resume = f"checkpoint.resume={json.dumps(arguments.resume, ensure_ascii=False)}"
    return [*overrides_of(arguments), resume]


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Return the overrides of `--model` and `--set`, the latter last."""
    model = (
        [f"model.path={json.dumps(arguments.model, ensure_ascii=False)}"]
        if arguments.model is not None
        else []
    )
    return model + list(arguments.set)


def cluster_of(arguments: argparse.Namespace, profile: CostProfile) -> Cluster:
    """Build the cluster of `--gpus` and `--gpus-per-node`."""
    return Cluster(arguments.gpus, arguments.gpus_per_node or profile.gpus_per_node)


class PlannedCosts(NamedTuple):
    """The costs that a command plans with.

    Attributes:
        profile: Cost profile.
        cluster: Cluster.
        node_lines: Description of each kind of nodes; empty without `--nodes`.
    """

    profile: CostProfile
    cluster: Cluster
    node_lines: str


def costs_of(arguments: argparse.Namespace) -> PlannedCosts:
    """Load the profile, with its derived schemes, and build the cluster of `--gpus` or `--nodes`.

    Raises:
        InvalidInputError: Not exactly one of `--gpus` and `--nodes` is given (code `option_invalid`), or the
            nodes are refused (see `parse_nodes` and `mix_nodes`).
    """
    profile = load_profile(arguments.profile)
    if arguments.gpus is None and arguments.nodes is None:
        message = f"the cluster is missing: give --gpus N, or {_NODES} LIST"
        raise InvalidInputError(message, code="option_invalid")
    if arguments.gpus is not None and arguments.nodes is not None:
        message = f"--gpus and {_NODES} both state the cluster: give one of them"
        raise InvalidInputError(message, code="option_invalid")
    lines: Iterable[str] = ()
    if arguments.nodes is None:
        cluster = cluster_of(arguments, profile)
    else:
        kinds = parse_nodes(_NODES, arguments.nodes, arguments.profile)
        per_node = arguments.gpus_per_node or profile.gpus_per_node
        lines = describe_nodes(profile, kinds, per_node)
        profile, cluster = mix_nodes(profile, kinds, per_node)
    if arguments.layer_plans is not None:
        profile = profile.with_layer_plans(arguments.layer_plans)
    if arguments.layer_splits is not None:
        profile = profile.with_layer_splits(arguments.layer_splits)
    return PlannedCosts(profile, cluster, "".join(f"{line}\n" for line in lines))


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Declare `--memory`."""
    parser.add_argument(
        "--memory",
        choices=get_args(MemoryRule),
        default=get_args(MemoryRule)[0],
        help="memory limit: per_micro_batch, the same for each micro-batch; in_flight, for all micro-batches "
        "in flight, which admits longer sequences (default: per_micro_batch)",
    )


def add_layer_plans(parser: argparse.ArgumentParser) -> None:
    """Declare `--layer-plans`; see `costs_of`."""
    parser.add_argument(
        "--layer-plans",
        type=layer_count,
        metavar="N",
        help="add schemes with N numbers of checkpointed layers between each two successive kinds of the "
        "profile, such as <tp2,full:12/40> (default: none)",
    )


def add_layer_splits(parser: argparse.ArgumentParser) -> None:
    """Declare `--layer-splits`; see `costs_of`."""
    parser.add_argument(
        "--layer-splits",
        type=layer_count,
        metavar="N",
        help="add schemes with fewer layers in stages on slow ranks, such as <pp2,split:3-9>, N for each "
        "place of such stages; candidates where ranks differ (default: none)",
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    """Declare `--link`."""
    parser.add_argument(
        "--link",
        default=LINK_FROM_PROFILE,
        metavar="RATES",
        help="link rates for transfers of parameters and gradients: NODE[,GPU[,MESSAGE]] in GB/s of a node, "
        "GB/s of a GPU and microseconds of a message, as in 25,200,10, or DEVICE=RATES;DEVICE=RATES for "
        "nodes of several kinds; profile for its measured links, if any; none (default: profile)",
    )


def links_of(arguments: argparse.Namespace, profile: CostProfile, cluster: Cluster) -> ClusterLinks | None:
    """Return the links of `--link`; None without links."""
    return resolve_links("--link", arguments.link, profile, cluster)


def add_lengths(parser: argparse.ArgumentParser) -> None:
    """Declare `--lengths` and `--field`."""
    add_lengths_file(parser, required=True)
    parser.add_argument("--field", metavar="NAME", help="the field of each .jsonl record")


def add_lengths_file(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare `--lengths`."""
    parser.add_argument(
        "--lengths",
        required=required,
        type=Path,
        metavar="FILE",
        help="the lengths in tokens (text, .npy, .jsonl)",
    )


def add_batches(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare `--tokens-per-batch`, `--count` and `--seed`: batches sampled from the lengths."""
    parser.add_argument(
        BATCH_OPTION,
        required=required,
        type=count,
        metavar="T",
        help="least number of tokens of a global batch",
    )
    parser.add_argument(
        "--count", type=count, default=50, metavar="N", help="number of batches (default: 50)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the batches (default: 0)")


def add_strategies(parser: argparse.ArgumentParser) -> None:
    """Declare `--strategies`; see `strategies_of`."""
    parser.add_argument(
        "--strategies",
        metavar="LIST",
        help="strategies to choose from, separated by ';', or 'search' for any (default: the profile's list; "
        "without one, mixes of two schemes)",
    )


def add_figure(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Declare `--figure`.

    Args:
        parser: Parser of the subcommand.
        also: Further effect of the option, for its help text.
    """
    kinds = ", ".join(FIGURE_KINDS)
    parser.add_argument(
        "--figure",
        type=PathEnding(FIGURE_KINDS, "the format of the figure"),
        metavar="FILE",
        help=f"draw a figure ({kinds}; needs matplotlib){also}",
    )


def add_json(parser: argparse.ArgumentParser, content: str) -> None:
    """Declare `--json`, the last option of every command.

    Args:
        parser: Parser of the subcommand.
        content: Content of the JSON document, for the help text.
    """
    parser.add_argument("--json", action="store_true", help=f"print {content} as JSON on one line")


def written_to(*paths: Path | None) -> str:
    """Return a line for each written file; a path is None for a file that was not requested."""
    return "".join(f"written to {escape_unprintable(str(path))}\n" for path in paths if path is not None)


def json_line(document: Mapping[str, object], *paths: Path | None) -> str:
    """Return a document as `--json` prints it, with the paths of written files as `files`.

    Infinities and NaN, which JSON lacks, become null.
    """
    files = [str(path) for path in paths if path is not None]
    return json.dumps(_finite({**document, "files": files}), default=str, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _finite(one) for key, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
        case _:
            return value


def strategies_of(text: str | None) -> list[str] | Literal["search"] | None:
    """Parse the value of `--strategies`: a list, `search`, or None.

    Raises:
        InvalidInputError: A name is refused (see `check_strategy_names`).
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
    """Type of an option that takes the path of an output file with certain endings.

    Attributes:
        endings: Accepted endings, each with its dot.
        meaning: Meaning of the ending, for the error message.
    """

    endings: tuple[str, ...]
    meaning: str

    def __call__(self, text: str) -> Path:
        """Parse the path.

        Raises:
            ArgumentTypeError: The path has another ending.
        """
        path = Path(text)
        if path.suffix.lower() not in self.endings:
            message = f"{text!r} must end with {' or '.join(self.endings)}: {self.meaning}"
            raise argparse.ArgumentTypeError(message)
        return path


def count(text: str) -> int:
    """Parse a count from 1 to 2^32 - 1, the range of the core, written as in Python and TOML: `200_000`."""
    return _count_up_to(2**32 - 1, text)


def layer_count(text: str) -> int:
    """Parse a count from 1 to 2^16 - 1, the most layers of a model."""
    return _count_up_to(2**16 - 1, text)


def _count_up_to(most: int, text: str) -> int:
    digits = text.replace("_", "")
    if not (re.fullmatch(r"[0-9]+(_[0-9]+)*", text) and 1 <= int(digits[:11]) <= most):
        is_larger = digits.isdecimal() and int(digits[:11]) > most
        limit = f" and at most {most}" if is_larger else ""
        message = f"{text!r} must be a whole number of at least 1{limit}"
        raise argparse.ArgumentTypeError(message)
    return int(digits)
