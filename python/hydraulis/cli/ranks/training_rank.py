"""One rank of a training run, from its command line to its exit code.

torch takes seconds to load on each rank, so that it is loaded after the configuration is accepted.
"""

import argparse
import os
import sys
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.options import json_line, with_resume
from hydraulis.cli.ranks.report import PARENT, end_as_lost, report_as_rank, report_before_meeting
from hydraulis.cli.terminal.output import tolerating_lost_output
from hydraulis.config.run import RunConfig, load
from hydraulis.errors import HydraulisError
from hydraulis.extras import require_torch
from hydraulis.runtime.ranks.torchrun import require_torchrun

if TYPE_CHECKING:
    from hydraulis.runtime.ranks.joining import LivenessSettings
    from hydraulis.runtime.ranks.stop import StopRequest
    from hydraulis.train.run import TrainingResult


def train_as_rank(program: str, arguments: argparse.Namespace) -> int:
    """Train as one rank.

    Args:
        program: Name of the program, for errors.
        arguments: Options of the command.

    Returns:
        The exit code: 0; 2 if the configuration or the data was refused; 3 if another rank was lost; 130 if
        the run was interrupted.
    """
    try:
        config = load(arguments.config, with_resume(arguments), arguments.preset)
        require_torchrun()
        require_torch("training")
    except HydraulisError as error:
        return report_before_meeting(program, error)
    with tolerating_lost_output(is_result=arguments.json):
        if os.environ["RANK"] == "0" and PARENT not in os.environ:
            say_start(int(os.environ["WORLD_SIZE"]), as_json=arguments.json)
        return _run(program, config, as_json=arguments.json)


def say_start(num_ranks: int, *, as_json: bool) -> None:
    """Print that the ranks start, because nothing else is shown for seconds.

    Args:
        num_ranks: Number of ranks.
        as_json: Whether standard output is reserved for a JSON document.
    """
    out = sys.stderr if as_json else sys.stdout
    out.write(f"starting {num_ranks} rank{'s' if num_ranks > 1 else ''}: loading torch takes some seconds\n")
    out.flush()


def _run(program: str, config: RunConfig, *, as_json: bool) -> int:
    from hydraulis.runtime.memory.device_memory import with_device_memory, with_least_memory
    from hydraulis.runtime.ranks.device import choose_device
    from hydraulis.runtime.ranks.distributed import joined
    from hydraulis.runtime.ranks.stop import StopRequest

    is_of_device = config.planner.memory_mib is None
    try:
        device = choose_device(config.train.device)
        config = with_device_memory(config, device)
    except HydraulisError as error:
        return report_before_meeting(program, error)
    timeout, deterministic = timedelta(seconds=config.train.timeout_s), config.train.deterministic
    with StopRequest() as stop:
        try:
            with joined(
                timeout,
                device,
                deterministic=deterministic,
                liveness=liveness_of(config, stop, program),
                channels=config.train.stage_channels,
            ) as rank:
                config = with_least_memory(config, is_of_device=is_of_device)
                return _train(config, rank, stop, as_json=as_json)
        except HydraulisError as error:
            # Inside StopRequest: torchrun terminates all ranks once one has failed, and the error has to be
            # reported first.
            stop.hold()
            return report_as_rank(program, error)


def liveness_of(config: RunConfig, stop: "StopRequest", program: str) -> "LivenessSettings":
    """Return the limits of a rank's start and silence, and its end after the loss of another rank.

    Args:
        config: Configuration of the run.
        stop: Request to end the work of this rank.
        program: Name of the program, for errors.
    """
    from hydraulis.runtime.ranks.joining import LivenessSettings

    return LivenessSettings(
        start_timeout_s=config.train.start_timeout_s,
        silence_s=config.train.silence_s,
        stop=stop,
        end=partial(end_as_lost, program),
    )


def _train(config: RunConfig, rank: int, stop: "StopRequest", *, as_json: bool) -> int:
    from hydraulis.cli.terminal.display import TrainingDisplay
    from hydraulis.train.run import train

    with TrainingDisplay(rank, json=as_json) as display:
        result = train(config, stop, display)
    if result is None:
        return EXIT_INTERRUPTED
    if rank == 0 and as_json:
        sys.stdout.write(_json(result))
    return 0 if result.is_finished else EXIT_INTERRUPTED


def _json(result: "TrainingResult") -> str:
    """Return the document that `--json` prints."""
    summary = result.summary
    facts = {"first_step": result.first_step, "steps": 0} if summary is None else asdict(summary)
    document = {"num_steps": result.num_steps, "finished": result.is_finished, **facts}
    return json_line(document, *(summary.files if summary else ()))
