"""`torchrun -m hydraulis.train`: trains as one rank.

torch takes seconds to load on each rank, so that it is loaded after the configuration is accepted.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.options import add_json, add_resume, add_run_config, json_line, with_resume
from hydraulis.cli.parser import Parser
from hydraulis.cli.ranks.report import end_as_lost, report_as_rank, report_before_meeting
from hydraulis.cli.terminal.output import tolerating_lost_output
from hydraulis.config.run import RunConfig, load
from hydraulis.errors import HydraulisError
from hydraulis.extras import require_torch
from hydraulis.runtime.ranks.torchrun import require_torchrun

if TYPE_CHECKING:
    from hydraulis.runtime.ranks.stop import StopRequest
    from hydraulis.train.run import TrainingResult

_EXAMPLES = """\
examples:
  torchrun --standalone --nproc-per-node 4 -m hydraulis.train examples/demo.toml
  torchrun --standalone --nproc-per-node 8 -m hydraulis.train run.toml --preset node --set train.epochs=2
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
      -m hydraulis.train run.toml --preset nodes --resume latest

`hydraulis config RUN.toml` prints the effective configuration; `hydraulis check RUN.toml --gpus N` checks a
run before any rank starts.

exit codes:
  0    done
  2    the configuration or the data was refused
  3    another rank was lost; the message names the newest checkpoint
  130  interrupted, terminated or hung up: the current step was completed and a checkpoint written
torchrun itself exits with 1 if any rank exits with a code other than 0.
"""
_PROGRAM = "hydraulis.train"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as one rank.

    Args:
        arguments: Command line without the program's name; None for that of the process.

    Returns:
        The exit code: 0; 2 if the configuration or the data was refused; 3 if another rank was lost; 130 if
        the run was interrupted.
    """
    try:
        parsed = make_parser().parse_args(arguments)
        config = load(parsed.config, with_resume(parsed), parsed.preset)
        require_torchrun()
        require_torch("training")
    except HydraulisError as error:
        return report_before_meeting(_PROGRAM, error)
    with tolerating_lost_output():
        return _run(config, as_json=parsed.json)


def _run(config: RunConfig, *, as_json: bool) -> int:
    from hydraulis.runtime.ranks.device import choose_device
    from hydraulis.runtime.ranks.distributed import joined
    from hydraulis.runtime.ranks.joining import LivenessSettings
    from hydraulis.runtime.ranks.stop import StopRequest

    try:
        device = choose_device(config.train.device)
    except HydraulisError as error:
        return report_before_meeting(_PROGRAM, error)
    timeout, deterministic = timedelta(seconds=config.train.timeout_s), config.train.deterministic
    with StopRequest() as stop:
        liveness = LivenessSettings(
            silence_s=config.train.silence_s, stop=stop, end=partial(end_as_lost, _PROGRAM)
        )
        try:
            with joined(timeout, device, deterministic=deterministic, liveness=liveness) as rank:
                return _train(config, rank, stop, as_json=as_json)
        except HydraulisError as error:
            # Inside StopRequest: torchrun terminates all ranks once one has failed, and the error has to be
            # reported first.
            return report_as_rank(_PROGRAM, error)


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


def make_parser() -> argparse.ArgumentParser:
    """Declare the command's options."""
    parser = Parser(
        # --help works without torchrun.
        prog=f"python -m {_PROGRAM}",
        description="Train, with a plan of its own for each step.",
        epilog=_EXAMPLES,
    )
    add_run_config(parser)
    add_resume(parser)
    add_json(parser, "the summary")
    return parser
