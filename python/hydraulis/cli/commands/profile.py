"""`hydraulis profile`: measures a cost profile on ranks, or refines that of a run."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.options import PathEnding, add_config_layers, add_json, add_ranks, overrides_of, written_to
from hydraulis.cli.ranks.local_ranks import run_local_ranks
from hydraulis.cli.ranks.report import end_with_parent, is_rank, report_as_rank, report_before_meeting
from hydraulis.cli.ranks.training_rank import liveness_of
from hydraulis.cli.tables.profile_table import profile_table
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.cli.terminal.progress import Progress
from hydraulis.config.planner import SEARCH
from hydraulis.config.run import RunConfig, load
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.extras import require_torch
from hydraulis.files import check_files_writable, write_whole_file

if TYPE_CHECKING:
    import torch

    from hydraulis.runtime.ranks.stop import StopRequest
    from hydraulis.runtime.worker import Worker

_EXAMPLES = """\
examples:
  hydraulis profile examples/demo.toml --ranks 4 --output demo-profile.json
  hydraulis profile run.toml --ranks 2 --schemes '<1>;<tp2>;<pp2>;<cp2>' --seconds 60 --output profile.json
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint HOST:29500 -m hydraulis profile run.toml \\
      --output profile.json
  hydraulis profile --refine runs/demo --output refined.json

Model, dtype, activation checkpointing, kind of context parallelism, memory and longest sequence come from the
run's configuration: training and `hydraulis plan --profile FILE` accept the profile. Measurements are kept in
OUTPUT.measurements.jsonl, and the same command continues them. With --refine no rank is started: the profile
of a finished run is fitted again to the times that the run recorded.
"""

_PROGRAM = "hydraulis"
_PURPOSE = "hydraulis profile"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "profile",
        help="measure a cost profile",
        description="Measure time, memory and links of each scheme, and write a cost profile.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("config", nargs="?", metavar="RUN.toml", help="the configuration of a run")
    parser.add_argument(
        "--refine", type=Path, metavar="RUN", help="the folder of a run whose times refine its profile"
    )
    add_config_layers(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=PathEnding((".json",), "the format is JSON"),
        metavar="FILE.json",
        help="the profile to write",
    )
    add_ranks(parser)
    parser.add_argument(
        "--schemes", metavar="LIST", help="schemes separated by ';' (default: those of the run's strategies)"
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        metavar="S",
        help="time after which no pass is begun (default: planner.profile_seconds)",
    )
    parser.add_argument(
        "--precision",
        type=_positive,
        default=0.01,
        metavar="SHARE",
        help="relative precision of a scheme's median times that ends its measurement (default: 0.01)",
    )
    add_json(parser, "the profile")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure or refine a profile and write it, or start ranks that measure.

    Returns:
        0; 130 if it was interrupted, with the measurements kept.

    Raises:
        InvalidInputError: Both a configuration and a run are named, or neither (code `option_invalid`), there
            are no ranks (`not_torchrun`), the profile cannot be written (`file_unwritable`), or a value is
            refused.
        KeyboardInterrupt: The ranks it started were interrupted; their measurements are kept.
    """
    if (arguments.config is None) == (arguments.refine is None):
        message = "give either RUN.toml, to measure, or --refine with the folder of a run"
        raise InvalidInputError(message, code="option_invalid")
    if arguments.refine is not None:
        return _refine(arguments)
    if is_rank():
        if arguments.ranks is not None:
            message = "--ranks starts ranks, and torchrun has started them already: leave it out"
            raise InvalidInputError(message, code="option_invalid")
        end_with_parent()
        return _as_rank(arguments)
    # Loaded here too: a refusal is printed once and starts no rank.
    _config(arguments)
    require_torch(_PURPOSE)
    if arguments.ranks is None:
        message = (
            "profile measures on ranks, and there are none: add --ranks N to start N ranks here, or start it "
            "as torchrun --standalone --nproc-per-node N -m hydraulis profile RUN.toml --output FILE.json"
        )
        raise InvalidInputError(message, code="not_torchrun")
    check_files_writable(arguments.output)
    return run_local_ranks(arguments.ranks, _for_ranks(arguments))


def _for_ranks(arguments: argparse.Namespace) -> list[str]:
    """Return the command line of a rank: that of the command without `--ranks`."""
    words = ["profile", arguments.config, "--output", str(arguments.output)]
    words += ["--precision", str(arguments.precision)]
    words += ["--json"] if arguments.json else []
    words += ["--schemes", arguments.schemes] if arguments.schemes is not None else []
    words += ["--seconds", str(arguments.seconds)] if arguments.seconds is not None else []
    words += ["--preset", arguments.preset] if arguments.preset is not None else []
    return words + [word for override in overrides_of(arguments) for word in ("--set", override)]


def _refine(arguments: argparse.Namespace) -> int:
    check_files_writable(arguments.output)
    require_torch(_PURPOSE)
    # Imported here: the command starts without torch.
    from hydraulis.profile.refine import refine

    with Progress() as progress:
        refined = refine(arguments.refine, progress)
    _finish(arguments, refined.profile, refined.explain)
    return 0


def _as_rank(arguments: argparse.Namespace) -> int:
    """Measure as one rank. The first rank reports errors that all ranks share."""
    config = _config(arguments)
    require_torch(_PURPOSE)
    from hydraulis.runtime.memory.device_memory import with_device_memory
    from hydraulis.runtime.ranks.device import choose_device
    from hydraulis.runtime.ranks.stop import StopRequest

    is_of_device = config.planner.memory_mib is None
    try:
        device = choose_device(config.train.device)
        config = with_device_memory(config, device)
    except HydraulisError as error:
        return report_before_meeting(_PROGRAM, error)
    with StopRequest() as stop:
        try:
            return _measure_together(arguments, config, device, stop, is_of_device=is_of_device)
        except HydraulisError as error:
            stop.hold()
            return report_as_rank(_PROGRAM, error)


def _config(arguments: argparse.Namespace) -> RunConfig:
    config = load(arguments.config, overrides_of(arguments), arguments.preset)
    # A run with a saved profile need not state it.
    config.check_memory()
    return _with_schemes(arguments.schemes, config)


def _measure_together(
    arguments: argparse.Namespace,
    config: RunConfig,
    device: "torch.device",
    stop: "StopRequest",
    *,
    is_of_device: bool,
) -> int:
    """Join the other ranks, measure the profile and write it. Collective.

    Args:
        arguments: Options of the command.
        config: Configuration with the memory of a rank.
        device: Device of this rank.
        stop: Request to end the measurement.
        is_of_device: Whether that memory is the device's.
    """
    from datetime import timedelta

    from hydraulis.runtime.agreement.comparison import check_same
    from hydraulis.runtime.agreement.run_facts import REMEDY, run_facts
    from hydraulis.runtime.memory.device_memory import with_least_memory
    from hydraulis.runtime.ranks.distributed import joined, run_cluster
    from hydraulis.runtime.ranks.rank_zero import on_rank_zero

    joining = joined(
        timedelta(seconds=config.train.timeout_s),
        device,
        deterministic=config.train.deterministic,
        liveness=liveness_of(config, stop, _PROGRAM),
        channels=config.train.stage_channels,
    )
    with joining:
        config = with_least_memory(config, is_of_device=is_of_device)
        check_same(run_facts(config), REMEDY)
        on_rank_zero(lambda: check_files_writable(arguments.output))
        cluster = run_cluster()
        profile = _measure(arguments, config, cluster, device, stop)
        if profile is None:
            on_rank_zero(lambda: _print_kept(_measurements(arguments)))
            return EXIT_INTERRUPTED
        on_rank_zero(lambda: _finish(arguments, profile, lambda: profile_table(profile, cluster)))
    return 0


def _measure(
    arguments: argparse.Namespace,
    config: RunConfig,
    cluster: Cluster,
    device: "torch.device",
    stop: "StopRequest",
) -> CostProfile | None:
    """Measure the profile, with progress on rank 0; None if stopped. Collective."""
    import torch.distributed as dist

    from hydraulis.profile.measure import WARMING_UP, announcement
    from hydraulis.profile.run_profile import measured_profile, measurement_limits

    schemes = _schemes(config, cluster, arguments.schemes)
    worker = _worker(config, schemes, device)
    limits = dataclasses.replace(
        measurement_limits(config),
        seconds=arguments.seconds or config.planner.profile_seconds,
        precision=arguments.precision,
        file=_measurements(arguments),
    )
    if dist.get_rank() != 0:
        return measured_profile(worker, schemes, limits, lambda _share: None, stop.agreed)
    announced = announcement(len(schemes), device, limits.seconds)
    sys.stderr.write(f"{_continued(_measurements(arguments))}{announced}\n")
    with Progress() as progress:
        progress(WARMING_UP)
        return measured_profile(worker, schemes, limits, progress.share("measuring"), stop.agreed)


def _worker(config: RunConfig, schemes: list[Scheme], device: "torch.device") -> "Worker":
    """Build the worker that measures; it trains no step. Collective."""
    import torch.distributed as dist

    from hydraulis.runtime.memory.out_of_memory import naming_full_device
    from hydraulis.runtime.worker import Worker

    # A worker needs a number of steps, which train.epochs would take from the data.
    train = dataclasses.replace(config.train, steps=config.train.steps or 1)
    with naming_full_device(device, dist.get_rank()):
        return Worker(config.model, config.optimizer, train, schemes=schemes)


def _measurements(arguments: argparse.Namespace) -> Path:
    """Return the path of the file that keeps the measurements."""
    output: Path = arguments.output
    return output.with_name(output.name + ".measurements.jsonl")


def _schemes(config: RunConfig, cluster: Cluster, named: str | None) -> list[Scheme]:
    """Return the schemes to measure: those of `--schemes`, else those of the run's strategies."""
    from hydraulis.runtime.planning.run_schemes import run_schemes

    if named is not None:
        return run_schemes(config, cluster, None, "--schemes")
    try:
        return run_schemes(config, cluster, None)
    except InvalidInputError as error:
        if error.code != "strategy_unplaceable":
            raise
        message = f"{error}, or name the schemes to measure by --schemes"
        raise InvalidInputError(message, code=error.code) from None


def _continued(file: Path) -> str:
    from hydraulis.profile.record import count_observations

    number = count_observations(file)
    return f"continuing after {number:,} measurements in {file}; remove it to start over\n" if number else ""


def _print_kept(file: Path) -> None:
    from hydraulis.profile.record import count_observations

    number = count_observations(file)
    kept = f"{number:,} measurements are kept in {file}; the same command continues them"
    sys.stderr.write(f"{kept if number else 'nothing was measured yet'}\n")


def _with_schemes(text: str | None, config: RunConfig) -> RunConfig:
    """Replace the run's strategies by a search over the named schemes, if there are any."""
    if text is None:
        return config
    schemes = tuple(part.strip() for part in text.split(";") if part.strip())
    if not schemes:
        message = f"--schemes = {text!r} names no scheme; name some, such as '<1>;<tp2>'"
        raise InvalidInputError(message, code="strategy_invalid")
    for scheme in schemes:
        Scheme(scheme)
    planner = dataclasses.replace(config.planner, strategies=SEARCH, schemes=schemes)
    return dataclasses.replace(config, planner=planner)


def _finish(arguments: argparse.Namespace, profile: CostProfile, describe: Callable[[], str]) -> None:
    """Write the profile, and print it or its description."""
    with write_whole_file(arguments.output) as file:
        file.write((profile.to_json() + "\n").encode())
    if arguments.json:
        # On one line, unlike in the file.
        sys.stdout.write(json.dumps(json.loads(profile.to_json())) + "\n")
    else:
        sys.stdout.write(fitted(describe(), terminal_width()) + written_to(arguments.output))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        message = f"{text!r} must be a number above 0"
        raise argparse.ArgumentTypeError(message)
    return value
